#!/usr/bin/env bash
# Finds Python, makes .venv once from a hash lock, and becomes sparkyard. `./start.sh test [suite]` runs the tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
lock=orchestrator/requirements.lock
[ "${1:-}" = test ] && lock=tests/requirements.lock

if [ -z "${SPARKYARD_PYTHON:-}" ]; then
  for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then SPARKYARD_PYTHON=$name; break; fi
  done
fi
[ -n "${SPARKYARD_PYTHON:-}" ] || { echo "sparkyard needs Python 3.11 or newer: sudo apt install python3" >&2; exit 2; }

# The tests' lock contains the other one, so an environment made for the tests serves both.
want=$(cat "$lock" <("$SPARKYARD_PYTHON" -V) | sha256sum)
good() { [ -f .venv/complete ] && grep -qF "$want" .venv/complete && .venv/bin/python -c 'import typer, asyncssh, pydantic' 2>/dev/null; }
if ! good; then
  exec 9>.venv.lock && flock 9
  if ! good; then
    echo "sparkyard: making .venv (once, about 200 MB)" >&2
    rm -rf .venv
    if command -v uv >/dev/null; then
      uv venv -q --python "$SPARKYARD_PYTHON" .venv && uv pip install -q --python .venv/bin/python --require-hashes -r "$lock"
    elif "$SPARKYARD_PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
      "$SPARKYARD_PYTHON" -m venv .venv && .venv/bin/python -m pip install -qq --disable-pip-version-check --require-hashes -r "$lock"
    else
      echo "this Python has no ensurepip: sudo apt install $("$SPARKYARD_PYTHON" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')" >&2; exit 2
    fi
    for each in orchestrator/requirements.lock "$lock"; do cat "$each" <("$SPARKYARD_PYTHON" -V) | sha256sum; done >.venv/complete
  fi
  exec 9>&-
fi
if [ "${1:-}" = test ]; then shift; exec .venv/bin/python -m tests.run "$@"; fi
exec .venv/bin/python -m orchestrator "$@"
