#!/usr/bin/env bash
# Finds Python, makes .venv once from a hash lock, and becomes sparkyard. `./start.sh test [suite]` runs the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
venv=${SPARKYARD_VENV:-.venv} lock=orchestrator/requirements.lock
[ "${1:-}" = test ] && lock=tests/requirements.lock

if [ -z "${SPARKYARD_PYTHON:-}" ]; then
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then SPARKYARD_PYTHON=$name; break; fi
  done
fi
[ -n "${SPARKYARD_PYTHON:-}" ] || { echo "sparkyard needs Python 3.11 or newer: sudo apt install python3" >&2; exit 2; }

# A lock's stamp is written last: an environment without it is half-made, one that cannot import is broken.
stamp() { cat "$1" <("$SPARKYARD_PYTHON" -V) | sha256sum; }
works() { [ -f "$venv/complete" ] && "$venv/bin/python" -c 'import typer, asyncssh, pydantic' 2>/dev/null; }
good() { works && grep -qF "$(stamp "$lock")" "$venv/complete"; }
if ! good; then
  exec 9>"$venv.lock" && flock 9
  if ! good; then
    echo "sparkyard: making $venv (once, about 350 MB)" >&2
    works || rm -rf "$venv"
    if command -v uv >/dev/null; then
      [ -d "$venv" ] || uv venv -q --python "$SPARKYARD_PYTHON" "$venv"
      uv pip install -q --python "$venv/bin/python" --require-hashes -r "$lock"
    elif "$SPARKYARD_PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
      [ -d "$venv" ] || "$SPARKYARD_PYTHON" -m venv "$venv"
      "$venv/bin/python" -m pip install -qq --disable-pip-version-check --require-hashes -r "$lock"
    else
      echo "this Python has no ensurepip: sudo apt install python$("$SPARKYARD_PYTHON" -V | cut -d' ' -f2 | cut -d. -f1,2)-venv" >&2
      exit 2
    fi
    { stamp orchestrator/requirements.lock; stamp "$lock"; } >"$venv/complete"  # the tests' lock contains the other
  fi
  exec 9>&-
fi
if [ "${1:-}" = test ]; then shift; exec "$venv/bin/python" -m tests.run "$@"; fi
exec "$venv/bin/python" -m orchestrator "$@"
