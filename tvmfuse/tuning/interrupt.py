"""Ctrl-C while tuning: the first one asks politely, the second one is a KeyboardInterrupt."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class FirstInterrupt:
    """Context manager: within it the first SIGINT only sets ``seen``.

    Python code that TVM calls back (mutators, the cost model) must not raise
    KeyboardInterrupt: TVM would turn it into an error of the search. Outside the main thread
    nothing is changed, as Python delivers signals to that one alone.
    """

    def __init__(self) -> None:
        self.seen = False
        self._old: Any = None

    def __enter__(self) -> FirstInterrupt:
        if threading.current_thread() is threading.main_thread():
            self._old = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._old is not None:
            signal.signal(signal.SIGINT, self._old)
            self._old = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.seen:
            raise KeyboardInterrupt
        self.seen = True
