"""Where and on how many threads a model runs.

TVM keeps one worker pool for every OS thread that calls it. A pool is sized by the first call on
its thread, can never grow, pins its workers and the caller to single CPUs, and outlives the
thread. So a model runs on the thread that loaded it, whose pool is sized and unpinned here; a
call from any other thread is handed to an executor thread with a pool of exactly the model's
count. A pool for each calling thread would leak its workers whenever a server drops a thread.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tvmfuse.errors import OptionError
from tvmfuse.hardware import usable_cores

Result = TypeVar("Result")

_SHARE_ALL_CORES = -3  # TVM's AffinityMode: every worker may run on every listed CPU
_all: weakref.WeakSet[ModelThreads] = weakref.WeakSet()
_idle: dict[int, list[ThreadPoolExecutor]] = {}  # by thread count; their TVM pools cannot be freed


def size_pool(configure: Any, count: int, cpus: list[str]) -> None:
    """Size the calling thread's pool, unpinned; ``configure``: ``runtime.config_threadpool``.

    The plain form ``configure(1, count)`` leaves a pool of half the CPUs (TVM 0.27).
    """
    configure(_SHARE_ALL_CORES, count, cpus[:count])
    configure(_SHARE_ALL_CORES, count, cpus)


class ModelThreads:
    """Runs one model's calls one after another, each on ``count`` threads.

    Parameters
    ----------
    ffi
        The ``tvm_ffi`` module, with TVM's runtime loaded.
    count
        Threads for each kernel; None: the CPUs this process may use.

    Raises
    ------
    OptionError
        ``count`` is not between 1 and the number of CPUs this process may be scheduled on.
    """

    def __init__(self, ffi: Any, count: int | None) -> None:
        self._cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
        if count is not None and not 1 <= count <= len(self._cpus):
            raise OptionError(
                f"threads={count}, but this process may use {len(self._cpus)} CPUs; "
                f"pass 1 to {len(self._cpus)}"
            )
        self.count = usable_cores() if count is None else count
        self._configure_pool = ffi.get_global_func("runtime.config_threadpool")
        self._pool_threads = ffi.get_global_func("runtime.NumThreads")
        self._lock = threading.Lock()  # the VM keeps its registers in itself: one call at a time
        self._executor: ThreadPoolExecutor | None = None
        self._home: threading.Thread | None = threading.current_thread()
        self._size_pool(max(self.count, usable_cores()))
        _all.add(self)

    def run(self, call: Callable[..., Result], *args: Any) -> Result:
        """Return ``call(*args)``, run alone and on the model's own number of threads."""
        if threading.current_thread() is self._home:
            with self._lock:
                if self._pool_threads() == self.count or self._settle() == self.count:
                    return call(*args)
        return self._away().submit(self._locked, call, args).result()

    def _locked(self, call: Callable[..., Result], args: tuple[Any, ...]) -> Result:
        with self._lock:
            return call(*args)

    def _size_pool(self, size: int) -> None:
        """Create this thread's pool where there is none yet, then let its threads go anywhere."""
        size_pool(self._configure_pool, size, self._cpus)
        self._settle()

    def _settle(self) -> int:
        self._configure_pool(_SHARE_ALL_CORES, self.count, self._cpus)
        return self._pool_threads()

    def _away(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                spare = _idle.get(self.count)
                self._executor = spare.pop() if spare else self._new_executor()
                weakref.finalize(self, _idle.setdefault(self.count, []).append, self._executor)
            return self._executor

    def _new_executor(self) -> ThreadPoolExecutor:
        executor = ThreadPoolExecutor(1, f"tvmfuse-{self.count}-threads")
        executor.submit(self._size_pool, self.count).result()
        return executor


def _after_fork() -> None:
    """Worker threads do not survive a fork: a child's models move to new executor threads."""
    _idle.clear()
    for threads in _all:
        threads._home, threads._executor, threads._lock = None, None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
