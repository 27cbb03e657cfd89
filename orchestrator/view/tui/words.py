"""Numbers in few characters, and sparklines. What is not known is a dash, never a zero."""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "–"
BLOCKS = "▁▂▃▄▅▆▇█"
BAR_FULL, BAR_EMPTY = "█", "░"


def gib(value: float | None) -> str:
    """Bytes as GiB with one digit."""
    return UNKNOWN if value is None else f"{value / 2**30:.1f}"


def gigabits(bytes_per_s: float | None) -> str:
    """A rate in Gb/s, as links are labelled."""
    if bytes_per_s is None:
        return UNKNOWN
    value = bytes_per_s * 8 / 1e9
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def count(value: float | None) -> str:
    """A number with k and M."""
    if value is None:
        return UNKNOWN
    for limit, divisor, unit in ((1e3, 1.0, ""), (1e6, 1e3, "k"), (1e9, 1e6, "M")):
        if abs(value) < limit:
            scaled = value / divisor
            whole = scaled >= 100 or (divisor == 1.0 and scaled == int(scaled))
            return f"{scaled:.0f}{unit}" if whole else f"{scaled:.1f}{unit}"
    return f"{value / 1e9:.1f}G"


def percent(value: float | None) -> str:
    """A share."""
    return UNKNOWN if value is None else f"{value:.0%}"


def seconds(value: float | None) -> str:
    """A short time, from microseconds to seconds."""
    if value is None:
        return UNKNOWN
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"


def span(value: float | None) -> str:
    """A long time: 12s, 4m50s, 3h07m, 2d05h."""
    if value is None:
        return UNKNOWN
    whole = max(0, round(value))
    for limit, big, small, units in ((3600, 60, 1, "ms"), (86400, 3600, 60, "hm")):
        if whole < 60:
            return f"{whole}s"
        if whole < limit:
            return f"{whole // big}{units[0]}{whole % big // small:02}{units[1]}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def number(value: float | None, digits: int = 0, unit: str = "") -> str:
    """A plain number."""
    return UNKNOWN if value is None else f"{value:.{digits}f}{unit}"


def spark(history: Sequence[float], width: int, low: float = 0.0) -> str:
    """The last `width` points as blocks above `low`, right aligned; without points, spaces."""
    points = history[-width:] if width > 0 else ()
    if not points:
        return " " * max(0, width)
    reach = max(points) - low
    top = len(BLOCKS) - 1
    drawn = "".join(
        BLOCKS[max(0, min(top, int((point - low) / reach * top + 0.5)))] if reach > 0 else BLOCKS[0]
        for point in points
    )
    return drawn.rjust(width)


def bar(share: float | None, width: int) -> str:
    """A bar of `width` characters."""
    full = round(max(0.0, min(1.0, share or 0.0)) * width)
    return BAR_FULL * full + BAR_EMPTY * (width - full)
