"""Seconds per room at the end of every run, so that the suite's growth stays visible."""

import os
from collections import defaultdict
from pathlib import Path

import pytest

# The tests' tensors are tiny: a second thread never helps, and on a busy machine it waits for long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

SOURCE = Path(__file__).parent.parent / "src" / "querykey"
seconds: dict[str, float] = defaultdict(float)


def room_of(nodeid: str) -> str:
    """tests/attention/test_masks.py belongs to attention, tests/test_shapes.py to shapes."""
    parts = Path(nodeid.split("::")[0]).parts
    name = parts[1] if len(parts) > 2 else parts[-1].removeprefix("test_").removesuffix(".py")
    return name if (SOURCE / name).exists() or (SOURCE / f"{name}.py").exists() else "house"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    seconds[room_of(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section("seconds per room")
    for room, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{spent:8.1f}  {room}")
