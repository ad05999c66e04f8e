"""How a run is stopped from outside: by Ctrl-C, a closed terminal, or a request to end."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Turn Ctrl-C, SIGTERM and SIGHUP into an event, so that the step ends and is saved.

    A second Ctrl-C raises. SIGTERM is what torchrun sends after a Ctrl-C, and what clusters send;
    SIGHUP comes when a terminal closes, unless the caller ignores it, as nohup does.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def stop(number: int, frame: Any) -> None:
        if event.is_set() and number == signal.SIGINT:
            first = before[number]  # such as that of the command line, which notes it
            (first if callable(first) else signal.default_int_handler)(number, frame)
        event.set()

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {int(number): signal.signal(number, stop) for number in numbers}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
