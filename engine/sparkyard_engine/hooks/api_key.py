"""The API key from a file: SGLang takes it on its command line only, where every process list shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkyard_engine.drift import Symbol

SYMBOL = Symbol("sglang.srt.server_args.prepare_server_args", ("argv",))


def around(value: Any) -> Callable[..., Any]:
    """`value` is the file. The process ends when it cannot be read or is empty: an open API is never served."""

    def prepare_server_args(original: Callable[..., Any], argv: list[str]) -> Any:
        try:
            key = Path(str(value)).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SystemExit(f"sparkyard plug-in: {value}: {error.strerror}") from error
        if not key:
            raise SystemExit(f"sparkyard plug-in: {value}: holds no API key")
        return original([*argv, "--api-key", key])

    return prepare_server_args
