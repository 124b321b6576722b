"""What a long command says while it works: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TextIO

_LINE_EVERY_S = 5.0


class Progress:
    """Tells the user what is going on.

    Parameters
    ----------
    stream
        Where to write; with ``--json`` the command line passes stderr, so that stdout carries
        nothing but JSON.
    live
        Whether to draw a bar in place; by default if ``stream`` is a terminal.
    line_every_s
        Least seconds between two tuning lines of one task, where there is no bar.
    clock
        Seconds from a monotonic clock.
    """

    def __init__(
        self,
        stream: TextIO,
        live: bool | None = None,
        line_every_s: float = _LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._live = stream.isatty() if live is None else live
        self._line_every_s = line_every_s
        self._clock = clock
        self._start_s = clock()
        self._last_line_s: float | None = None
        self._pending = ""
        self._bar: Any = None
        self._bar_task: Any = None

    def stage(self, name: str) -> None:
        """Say which stage begins, e.g. ``"import"``; ends the tuning bar, if there is one."""
        self._end_tuning()
        self._line(f"[{self._clock() - self._start_s:6.1f} s] {name}")

    def note(self, text: str) -> None:
        """Say something worth knowing."""
        self._line(f"           {text}")

    def warn(self, text: str) -> None:
        """Say something the user should act on."""
        self._line(f"  warning: {text}")

    def tuning(
        self,
        task: str,
        done: int,
        total: int | None,
        best_ms: float | None,
        trials_per_s: float,
        seconds_left: float | None,
    ) -> None:
        """Show the state of the search; cheap enough to be called after every trial.

        Parameters
        ----------
        task
            The kernel that is being tuned.
        done, total
            Trials measured, of all tasks together, and to be measured; None: limited by time.
        best_ms
            Best latency of ``task``; None before the first success.
        trials_per_s
            Rate so far, search included.
        seconds_left
            Time to the end of the budget; None if unknown.
        """
        text = _tuning_text(task, done, total, best_ms, trials_per_s, seconds_left)
        if self._live:
            self._update_bar(text, done, total)
            return
        now_s = self._clock()
        if self._last_line_s is not None and now_s - self._last_line_s < self._line_every_s:
            self._pending = text
            return
        self._last_line_s, self._pending = now_s, ""
        self._line(f"           {text}")

    def close(self) -> None:
        """Finish the bar; the object may still be used for plain lines."""
        self._end_tuning()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _update_bar(self, text: str, done: int, total: int | None) -> None:
        if self._bar is None:
            self._bar = _make_bar(self._stream)
            self._bar_task = self._bar.add_task("", total=total)
            self._bar.start()
        self._bar.update(self._bar_task, description=text, completed=done, total=total)

    def _end_tuning(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._pending:  # the last state of the search is never swallowed by the throttle
            self._line(f"           {self._pending}")
        self._pending, self._last_line_s = "", None

    def _line(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        self._stream.write(text + "\n")
        self._stream.flush()


def _make_bar(stream: TextIO) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as RichProgress

    return RichProgress(
        BarColumn(bar_width=24),
        TextColumn("{task.description}", markup=False),
        console=Console(file=stream, force_terminal=True),
        transient=True,
        refresh_per_second=4,
    )


def _tuning_text(
    task: str,
    done: int,
    total: int | None,
    best_ms: float | None,
    trials_per_s: float,
    seconds_left: float | None,
) -> str:
    count = f"{done}/{total} trials" if total is not None else f"{done} trials"
    best = "none yet" if best_ms is None else f"{best_ms:.4g} ms"
    parts = [count, f"best {best}", f"{trials_per_s:.1f} trials/s"]
    if seconds_left is not None:
        parts.append(f"{_duration(seconds_left)} left")
    return f"{', '.join(parts)}: {task}"


def _duration(seconds: float) -> str:
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d} h"
