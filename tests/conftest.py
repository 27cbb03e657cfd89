"""For every suite: property tests are the same in each run, and a busy machine is no failure of theirs."""

from collections import Counter

from _pytest.terminal import TerminalReporter
from hypothesis import settings

settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate")


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """What passed tests have counted (`record_property`), added up: seeds, faults, planted faults that were caught."""
    counts: Counter[str] = Counter()
    for report in terminalreporter.stats.get("passed", []):
        for name, number in report.user_properties if report.when == "call" else ():
            if isinstance(number, int):
                counts[name] += number
    if counts:
        words = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
        terminalreporter.write_line(f"counted: {words}")
