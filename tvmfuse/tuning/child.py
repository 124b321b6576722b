"""The measuring child: compiles candidates in memory, checks and times them, one at a time.

Started by :class:`tvmfuse.tuning.measure.LocalMeasurer`. Whatever a candidate does to this
process costs one restart and nothing else.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import resource
import signal
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from tvmfuse.hardware.tiles import request_tiles
from tvmfuse.runtime.threads import size_pool
from tvmfuse.tuning import wire

_PR_SET_PDEATHSIG = 1
_CACHE_BYTES = 1 << 30
_DETAIL_CHARS = 600
_TIME_LIMIT_S = 0.03


def main() -> None:
    """Serve requests until the parent closes the pipe."""
    requests, replies = _protect_pipes()
    _detach_from_terminal()
    sys.modules["torch"] = None  # type: ignore[assignment]  # tvm_ffi would import it: 1.6 s
    try:
        bench = Bench(wire.read_message(requests), replies)
        wire.write_message(replies, bench.time_sentinel())
        while True:
            wire.write_message(replies, bench.answer(wire.read_message(requests)))
    except wire.PeerGone:
        return


def _protect_pipes() -> tuple[int, int]:
    """Move the pipes away from stdin and stdout: a print must not garble the protocol."""
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    return requests, replies


def _detach_from_terminal() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    if sys.platform == "linux":  # a killed parent must not leave a spinning kernel behind
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _limit_memory(extra_bytes: int) -> None:
    with open("/proc/self/statm", encoding="ascii") as statm:
        used = int(statm.read().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    wanted = used + extra_bytes
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))


class Bench:
    """Compiles for one target and keeps arguments and reference outputs by workload."""

    def __init__(self, start: wire.Start, replies: int) -> None:
        import tvm  # not before torch is blocked

        import tvmfuse.schedules  # noqa: F401  its rules of lowering hold here as in the build
        from tvmfuse.schedules.cpu.amx import with_tile_instructions
        from tvmfuse.tuning import chain, kernel

        self._tvm, self._kernel, self._chain = tvm, kernel, chain
        self._with_tiles = with_tile_instructions
        request_tiles()  # of no use without them, and no harm
        self._start, self._replies = start, replies
        self._target = tvm.target.Target(start.target_json)
        # Without this TVM uses half of the CPUs it sees.
        cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
        size_pool(tvm.get_global_func("runtime.config_threadpool"), start.threads, cpus)
        self._workloads: dict[str, _Workload] = {}
        self._arguments: OrderedDict[str, Any] = OrderedDict()
        self._built: list[Any] = []
        self._sentinel = self._build_sentinel()
        _limit_memory(start.memory_bytes)

    def answer(self, request: Any) -> Any:
        """Do what a request asks; a Python error becomes a Failed."""
        if isinstance(request, wire.Sentinel):
            return self.time_sentinel()
        if isinstance(request, wire.Register):
            return self._register(request)
        if isinstance(request, wire.Build):
            return self._build(request)
        return self._measure(request)

    def time_sentinel(self) -> wire.Timed:
        """Time the kernel whose speed tells how fast the machine is just now."""
        call, sets = self._sentinel
        samples, _ = self._kernel.time_kernel(call, sets, None, _TIME_LIMIT_S)
        return wire.Timed(tuple(samples))

    def _register(self, request: wire.Register) -> Any:
        try:
            module = pickle.loads(request.module)
            specs = self._kernel.argument_specs(module)
        except Exception as error:
            return wire.Failed("instantiate", _first_words(error))
        tolerance = request.tolerance
        if tolerance is None:
            tolerance = self._kernel.default_tolerance(specs)
        naive = module if request.naive_first else None
        self._workloads[request.key] = _Workload(specs, tolerance, naive)
        return wire.Timed(())

    def _build(self, request: wire.Build) -> list[Any]:
        """Compile on all cores: nothing is timed meanwhile, and TVM lets go of the GIL."""
        self._built = []
        answers: list[Any] = [None] * len(request.modules)
        with ThreadPoolExecutor(self._start.threads) as pool:
            jobs = {pool.submit(self._build_one, m): i for i, m in enumerate(request.modules)}
            for job in as_completed(jobs):
                answers[jobs[job]] = job.result()
                self._stage("build")
        self._built = answers
        return [a if isinstance(a, wire.Failed) else None for a in answers]

    def _build_one(self, pickled: bytes) -> Any:
        try:
            module = pickle.loads(pickled)
        except Exception as error:
            return wire.Failed("instantiate", _first_words(error))
        try:
            return self._compile(module)
        except Exception as error:
            return wire.Failed("build", _first_words(error))

    def _measure(self, request: wire.Measure) -> Any:
        call = self._built[request.index]
        self._built[request.index] = None  # its code is freed when it has been timed
        try:
            return self._check_and_time(request, self._workloads[request.key], call)
        except Exception as error:  # a kernel may fail its own argument checks, or allocation
            self._arguments.pop(request.key, None)
            return wire.Failed("run", _first_words(error))

    def _check_and_time(self, request: wire.Measure, work: _Workload, call: Any) -> Any:
        arguments = self._arguments_of(request.key, work)
        if work.reference is None and work.naive is not None:
            self._stage("reference")
            naive = self._compile(work.naive)
            work.reference = self._outputs(naive, arguments)
            work.naive = None
        self._stage("run")
        if isinstance(call, self._chain.Runner):
            call.prepare(arguments.tensors)
        found = self._outputs(call, arguments)
        if not arguments.inputs_intact():
            del self._arguments[request.key]
            return wire.Failed("wrong_answer", "it overwrites its inputs")
        if work.reference is None:
            work.reference = found
        error = self._kernel.largest_error(found, work.reference)
        if error > work.tolerance:
            return wire.Failed(
                "wrong_answer", f"relative error {error:.3g}, tolerance {work.tolerance:.3g}"
            )
        samples, cut = self._kernel.time_kernel(
            call, arguments.tensors, request.best_s, _TIME_LIMIT_S
        )
        return wire.Timed(tuple(samples), cut_short=cut)

    def _stage(self, name: str) -> None:
        wire.write_message(self._replies, wire.Stage(name))

    def _compile(self, module: Any) -> Any:
        if isinstance(module, self._chain.Chain):
            return self._chain.Runner(module, self._compile)
        instructed = self._with_tiles(module)
        return self._tvm.compile(instructed, target=self._target)["main"]

    def _outputs(self, call: Any, arguments: Any) -> Any:
        arguments.poison()
        call(*arguments.tensors[0])
        return arguments.outputs()

    def _arguments_of(self, key: str, work: _Workload) -> Any:
        """Arguments are built once per workload; the least used make room."""
        if key not in self._arguments:
            start = self._start
            self._arguments[key] = self._kernel.Arguments(
                work.specs, start.spread_bytes, start.seed
            )
        self._arguments.move_to_end(key)
        while (
            len(self._arguments) > 1
            and sum(a.n_bytes for a in self._arguments.values()) > _CACHE_BYTES
        ):
            self._arguments.popitem(last=False)
        return self._arguments[key]

    def _build_sentinel(self) -> tuple[Any, Any]:
        tvm, te = self._tvm, self._tvm.te
        rows, depth, lanes = 64 * self._start.threads, 256, 64
        a = te.placeholder((rows, depth), name="a")
        b = te.placeholder((depth, lanes), name="b")
        k = te.reduce_axis((0, depth), name="k")
        c = te.compute((rows, lanes), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
        func = te.create_prim_func([a, b, c]).with_attr("global_symbol", "main")
        schedule = tvm.s_tir.Schedule(func)
        block = schedule.get_sblock("c")
        i, j, k_loop = schedule.get_loops(block)
        schedule.reorder(i, k_loop, j)
        schedule.parallel(i)
        schedule.vectorize(j)
        schedule.decompose_reduction(block, k_loop)
        call = self._compile(schedule.mod)
        specs = self._kernel.argument_specs(tvm.IRModule({"main": func}))
        sets = self._kernel.Arguments(specs, 1, self._start.seed).tensors
        call(*sets[0])
        return call, sets


class _Workload:
    """What candidates of one workload are checked against."""

    def __init__(self, specs: Any, tolerance: float, naive: Any) -> None:
        self.specs, self.tolerance, self.naive = specs, tolerance, naive
        self.reference: Any = None


def _first_words(error: BaseException) -> str:
    """TVM errors end in their cause and start with pages of C++ frames."""
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines()]
    lines = [line for line in lines if line]
    text = lines[0] if len(lines) < 2 else f"{lines[0]} … {lines[-1]}"
    return text[:_DETAIL_CHARS]


if __name__ == "__main__":
    main()
