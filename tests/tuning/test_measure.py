"""Every fault here is made to happen for real, in a real child process."""

from __future__ import annotations

import signal
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import te
from tvm.script import tirx as T

from tvmfuse.errors import MeasureError
from tvmfuse.tuning import kernel, wire
from tvmfuse.tuning.measure import Failure, LocalMeasurer, Measured
from tvmfuse.tuning.task import as_main

N = 64


def _copy_plus_one() -> Any:
    a = te.placeholder((N,), name="a")
    b = te.compute((N,), lambda i: a[i] + tvm.tirx.const(1.0, "float32"), name="b")
    return as_main(te.create_prim_func([a, b]))


def _extern(*call: Any) -> Any:
    """The right answer after a call of a C function."""

    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        T.evaluate(T.call_extern("int32", *call))
        for i in range(N):
            b[i] = a[i] + T.float32(1)

    return as_main(main)


def _wrong() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for i in range(N):
            b[i] = a[i] + T.float32(1.001)

    return as_main(main)


def _forgets_the_end() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for i in range(N - 1):
            b[i] = a[i] + T.float32(1)

    return as_main(main)


def _spoils_its_input() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for i in range(N):
            b[i] = a[i] + T.float32(1)
            a[i] = T.float32(0)

    return as_main(main)


def _greedy() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        with T.sblock("root"):
            big = T.sblock_alloc_buffer((1 << 36,), "float32")
            for i in range(N):
                with T.sblock("fill"):
                    v = T.axis.spatial(N, i)
                    big[T.Cast("int64", v) * T.int64(1 << 28)] = a[v]
            for i in range(N):
                with T.sblock("read"):
                    v = T.axis.spatial(N, i)
                    b[v] = big[T.Cast("int64", v) * T.int64(1 << 28)] + T.float32(1)

    return as_main(main)


def _needs_a_gpu() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        for i in range(N):
            b[i] = a[i] + T.float32(1)
        T.evaluate(T.tvm_storage_sync("shared"))

    return as_main(main)


def _prints_and_is_right() -> Any:
    return _extern("puts", "noise on stdout")


@pytest.fixture(scope="module")
def measurer(machine):
    with LocalMeasurer(machine, timeout_s=3.0) as one:
        one.register("plus", _copy_plus_one())
        yield one


def _one(measurer: LocalMeasurer, module: Any, best_s: float | None = None) -> Any:
    results = list(measurer.measure("plus", [module], best_s))
    return results[-1][1]


def test_right_candidate_is_measured(measurer):
    result = _one(measurer, _copy_plus_one())
    assert isinstance(result, Measured)
    assert 0 < result.seconds < 0.1
    assert len(result.samples_s) >= kernel.MIN_SAMPLES
    assert not result.cut_short


def test_slow_candidate_is_cut_short(measurer):
    result = _one(measurer, _extern("usleep", 2000), best_s=1e-6)
    assert isinstance(result, Measured) and result.cut_short
    assert len(result.samples_s) == 1 and result.seconds >= 2e-3


def test_output_on_stdout_does_not_garble_the_protocol(measurer):
    assert isinstance(_one(measurer, _prints_and_is_right()), Measured)


@pytest.mark.parametrize(
    ("make", "kind", "says"),
    [
        (_wrong, "wrong_answer", "relative error"),
        (_forgets_the_end, "wrong_answer", "relative error"),
        (_spoils_its_input, "wrong_answer", "inputs"),
        (_needs_a_gpu, "build", ""),
        (_greedy, "run", ""),
    ],
)
def test_bad_candidate_is_a_failure_and_the_child_lives(measurer, make, kind, says):
    before = measurer.restarts
    result = _one(measurer, make())
    assert isinstance(result, Failure) and result.kind == kind, result
    assert says in result.detail
    assert measurer.restarts == before
    assert isinstance(_one(measurer, _copy_plus_one()), Measured)


def test_a_pickle_that_is_no_module_is_instantiate(measurer):
    result = _one(measurer, "not a module")
    assert isinstance(result, Failure) and result.kind in ("instantiate", "build")


@pytest.mark.parametrize(
    ("call", "kind", "says"),
    [
        (("raise", int(signal.SIGSEGV)), "run", f"signal {int(signal.SIGSEGV)}"),
        (("no_such_symbol_anywhere",), "run", f"signal {int(signal.SIGSEGV)}"),
        (("exit", 7), "run", "exit code 7"),
        (("sleep", 1000), "timeout", "run"),
    ],
)
def test_crash_and_hang_cost_one_restart(machine, call, kind, says):
    with LocalMeasurer(machine, timeout_s=1.5) as measurer:
        measurer.register("plus", _copy_plus_one())
        results = dict(
            measurer.measure("plus", [_copy_plus_one(), _extern(*call), _copy_plus_one()])
        )
        assert isinstance(results[0], Measured)
        assert isinstance(results[1], Failure)
        assert results[1].kind == kind and says in results[1].detail, results[1]
        assert isinstance(results[2], Measured)
        assert measurer.restarts == 1
        assert measurer.failures == {kind: 1}


def test_unscheduled_module_that_crashes_blames_no_candidate(machine):
    with LocalMeasurer(machine, timeout_s=5.0) as measurer:
        bad = as_main(_crashing_reference())
        measurer.register("plus", bad)
        first, second = (_one(measurer, _copy_plus_one()) for _ in range(2))
        assert isinstance(first, Failure) and first.kind == "unknown"
        assert "unscheduled" in first.detail
        assert isinstance(second, Measured)


def _crashing_reference() -> Any:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((N,), "float32"), b: T.Buffer((N,), "float32")):
        with T.sblock("root"):
            for i in range(N):
                with T.sblock("store"):
                    v = T.axis.spatial(N, i)
                    T.evaluate(T.call_extern("int32", "raise", 11))
                    b[v] = a[v]

    return main


def test_child_that_never_starts_is_an_error_with_its_last_words(machine, monkeypatch):
    monkeypatch.setattr("tvmfuse.tuning.measure._RUN", "raise SystemExit('no luck today')")
    measurer = LocalMeasurer(machine)
    measurer.register("plus", _copy_plus_one())
    with pytest.raises(MeasureError, match=r"3 times in a row.*no luck today"):
        list(measurer.measure("plus", [_copy_plus_one()]))


def test_interrupt_while_waiting_ends_the_child_and_the_next_call_works(machine, monkeypatch):
    def alarm(*_: object) -> None:
        raise KeyboardInterrupt

    measurer = LocalMeasurer(machine, timeout_s=30.0)
    measurer.register("plus", _copy_plus_one())
    assert isinstance(_one(measurer, _copy_plus_one()), Measured)
    child, ask = measurer._child, measurer._ask

    def ask_and_set_the_alarm(request, *rest):
        if isinstance(request, wire.Measure):  # earlier, on a busy machine nobody waits yet
            signal.setitimer(signal.ITIMER_REAL, 0.5)
        return ask(request, *rest)

    monkeypatch.setattr(measurer, "_ask", ask_and_set_the_alarm)
    old = signal.signal(signal.SIGALRM, alarm)
    try:
        with pytest.raises(KeyboardInterrupt):
            _one(measurer, _extern("sleep", 1000))
    finally:
        signal.signal(signal.SIGALRM, old)
    monkeypatch.undo()
    assert child.poll() is not None  # its number may already be another process's
    assert isinstance(_one(measurer, _copy_plus_one()), Measured)
    measurer.close()


def test_sentinel_drift_measures_contenders_again(machine, monkeypatch):
    with LocalMeasurer(machine, sentinel_every=2) as measurer:
        measurer.register("plus", _copy_plus_one())
        modules = [_copy_plus_one(), _copy_plus_one()]
        list(measurer.measure("plus", modules[:1]))
        monkeypatch.setattr(measurer, "sentinel_s", lambda: 2 * measurer._sentinel_s)
        indices = [index for index, _ in measurer.measure("plus", modules)]
        assert measurer.drifts == 1
        assert indices[0] == 0 and len(indices) > 2


def test_unregistered_workload_is_a_key_error(measurer):
    with pytest.raises(KeyError, match="nowhere"):
        list(measurer.measure("nowhere", [_copy_plus_one()]))


def test_argument_specs_tell_outputs_and_refuse_dynamic_shapes(matmul):
    specs = kernel.argument_specs(as_main(matmul()))
    assert [s.is_output for s in specs] == [False, False, True]
    n = tvm.tirx.Var("n", "int64")
    a = te.placeholder((n,), name="a")
    b = te.compute((n,), lambda i: a[i] * a[i], name="b")
    with pytest.raises(ValueError, match="dynamic"):
        kernel.argument_specs(as_main(te.create_prim_func([a, b])))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int32", "bool"])
def test_arguments_are_aligned_safe_and_equal_in_all_sets(dtype):
    specs = [kernel.ArgSpec((3, 5), dtype, False), kernel.ArgSpec((3,), "float32", True)]
    arguments = kernel.Arguments(specs, spread_bytes=2 << 20, seed=1)
    assert len(arguments.tensors) == kernel.MAX_COPIES
    raws = [one[0].raw for one in arguments._sets]
    assert all(raw.ctypes.data % 64 == 0 for raw in raws)
    assert all(np.array_equal(raw, raws[0]) for raw in raws) and raws[0].any()
    assert arguments.inputs_intact()
    raws[0][3] ^= 1
    assert not arguments.inputs_intact()


def test_largest_error_is_relative_and_strict_about_nan():
    one, nan = np.array([100.0, 1.0]), np.array([100.0, np.nan])
    assert kernel.largest_error([one + 0.1], [one]) == pytest.approx(1e-3)
    assert kernel.largest_error([nan], [nan]) == 0.0
    assert kernel.largest_error([nan], [one]) == np.inf
    assert kernel.largest_error([one], [nan]) == np.inf
    assert kernel.largest_error([np.array([1])], [np.array([2])]) == np.inf
