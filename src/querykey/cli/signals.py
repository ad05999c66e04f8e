"""What ends a call from outside: Ctrl-C, and the signals that ask a process to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Ctrl-C; what `kill`, `timeout` and clusters send; a terminal that is closed.
ENDING = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]


@contextmanager
def interruption() -> Iterator[list[int]]:
    """Yield a list that is empty until a signal asks this process to end; it gets the number.

    The signal raises KeyboardInterrupt, so that workers end and no file is left half-written. A
    model may raise that too, and may swallow it: the list tells. The same signal again does what it
    did before us.
    """
    received: list[int] = []

    def receive(number: int, frame: Any) -> None:
        received.append(number)
        signal.signal(number, before[number])
        raise KeyboardInterrupt

    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        plain = (signal.SIG_DFL, signal.default_int_handler)  # else ignored, or watched by others
        handlers = {int(number): signal.getsignal(number) for number in ENDING}
        before = {number: handler for number, handler in handlers.items() if handler in plain}
    for number in before:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped(number: int) -> str:
    """Return the sentence that says which signal ended a call."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    return f"stopped by {name}"
