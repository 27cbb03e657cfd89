"""Pictures of `top` from a recording: `python docs/pictures/draw.py FILE NAME [SECONDS WIDTHxHEIGHT KEY…]`.

FILE is what `monitor --record` wrote; SECONDS into it (default: its end). Writes NAME.svg beside this script.
"""
# ruff: noqa: INP001 - docs is no package

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from orchestrator.model.sample import NodeSampled  # noqa: E402 - as below
from orchestrator.view.node import NodeView  # noqa: E402 - as below
from orchestrator.view.state import unknown  # noqa: E402 - as below
from orchestrator.view.tui.app import Top  # noqa: E402 - the checkout is not installed
from orchestrator.watch.replay import Replay, read  # noqa: E402 - as above

END_S = 1e9


async def draw(file: Path, name: str, seconds: float, size: tuple[int, int], keys: list[str]) -> Path:
    """One picture; its path. ConfigError when the file has no event."""
    lines, _ = read(file)
    if seconds != END_S:
        lines = tuple(line for line in lines if line[0] <= lines[0][0] + seconds)
    names = sorted({happened.node for _, happened in lines if isinstance(happened, NodeSampled)})
    begin = replace(unknown(), nodes={name: NodeView(name) for name in names})
    replay = Replay(lines, begin, clock=lambda: 0.0)
    while not replay.about().endswith("end"):
        replay.seek(60.0)
    replay.pause()
    app = Top(replay, refresh_s=None)
    async with app.run_test(size=size) as pilot:
        for key in keys:
            await pilot.press(key)
        await pilot.pause()
        path = HERE / f"{name}.svg"
        path.write_text(app.export_screenshot(title=f"./start.sh top  {size[0]}×{size[1]}"), encoding="utf-8")
        return path


def main() -> int:
    """2 for a wrong call."""
    match sys.argv[1:]:
        case [file, name]:
            seconds, size, keys = END_S, "120x40", []
        case [file, name, seconds_text, size, *keys]:
            seconds = END_S if seconds_text == "end" else float(seconds_text)
        case _:
            sys.stderr.write(str(__doc__))
            return 2
    width, _, height = size.partition("x")
    print(asyncio.run(draw(Path(file), name, seconds, (int(width), int(height)), keys)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
