"""One kernel against its parts: what is measured how often, and what follows from it."""

import numpy as np
import pytest
import tvm
from tvm import te

from tvmfuse.hardware import resolve_target
from tvmfuse.schedules import default_schedule
from tvmfuse.schedules.anchor import Dense, to_text
from tvmfuse.schedules.cpu.variants import variants
from tvmfuse.tuning.chain import Chain, Link, Packing, Runner
from tvmfuse.tuning.measure import Failure, LocalMeasurer, Measured
from tvmfuse.tuning.spills import count_spills
from tvmfuse.tuning.task import as_main
from tvmfuse.tuning.verdicts import FIRST_ROUNDS, MORE_ROUNDS, ROUNDS, compare

HARDWARE = resolve_target("llvm", 1)
CHAIN = Chain((), HARDWARE)
FAILED = Failure("timeout", "no end of run in time")


class Scripted:
    """A measurer that answers with what it was given: seconds, or failures."""

    restarts = drifts = 0

    def __init__(self, fused, parts):
        self.times = {"fused": list(fused), "parts": list(parts)}
        self.asked = []

    def register(self, key, module, tolerance=None):
        self.asked.append(key)

    def measure(self, key, modules, best_s=None):
        for index, module in enumerate(modules):
            script = self.times["parts" if module is CHAIN else "fused"]
            answer = script.pop(0) if len(script) > 1 else script[0]
            yield index, answer if isinstance(answer, Failure) else Measured(answer, (answer,))

    def close(self):
        """Nothing to release."""


def compared(fused, parts, grey=False):
    measurer = Scripted(fused, parts)
    return compare(measurer, "key", "definition", "fused", CHAIN, None, grey), measurer


@pytest.mark.parametrize(
    ("fused", "parts", "grey", "pays", "close"),
    [
        ([0.90], [1.0], False, True, False),  # clear: looked at once
        ([0.90], [1.0], True, True, True),  # grey: measured again in any case
        ([0.98], [1.0], False, True, True),  # not under 0.97
        ([1.02], [1.0], False, True, True),  # within the margin: fused needs less memory
        ([1.05], [1.0], False, False, True),
        ([1.0], [0.9, 1.0], False, True, True),  # one lucky round of the parts
        ([5.00, 5.0, 0.5], [1.0], False, True, True),  # something else took its time at first
    ],
)
def test_what_pays(fused, parts, grey, pays, close):
    found, _ = compared(fused, parts, grey)
    assert (found.pays, found.close) == (pays, close)


def test_both_are_measured_in_turns():
    order = []

    class Watching(Scripted):
        def measure(self, key, modules, best_s=None):
            order.append([m is CHAIN for m in modules])
            return super().measure(key, modules, best_s)

    compare(Watching([1.0], [1.0]), "key", "definition", "fused", CHAIN, None, False)
    assert order == [[False, True] * FIRST_ROUNDS, [False, True] * ROUNDS]


def test_before_a_split_it_is_measured_more_often():
    calls = []

    class Counting(Scripted):
        def measure(self, key, modules, best_s=None):
            calls.append(len(modules) // 2)
            return super().measure(key, modules, best_s)

    found = compare(Counting([1.1], [1.0]), "key", "definition", "fused", CHAIN, None, False)
    assert not found.pays and found.ratio == pytest.approx(1.1)
    assert calls == [FIRST_ROUNDS, ROUNDS, MORE_ROUNDS]


def test_a_kernel_that_fails_does_not_pay_and_parts_that_fail_say_nothing():
    found, _ = compared([FAILED], [1.0])
    assert not found.pays and found.fused is FAILED
    assert compared([1.0], [FAILED])[0] is FAILED
    assert compared([1.0, 1.0, FAILED], [1.0])[0] is FAILED  # ran at first, then did not


N = 64


def relu_of_product():
    """``relu(x @ w)`` as one kernel over the logical weight, unscheduled and scheduled."""
    x, w = te.placeholder((N, N), name="x"), te.placeholder((N, N), name="w")
    k = te.reduce_axis((0, N), "k")
    y = te.compute((N, N), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), name="dense")
    zero = tvm.tirx.const(0.0, "float32")
    z = te.compute((N, N), lambda i, j: tvm.tirx.max(y[i, j], zero), name="relu")
    func = te.create_prim_func([x, w, z]).with_attr("global_symbol", "main")
    return as_main(func), default_schedule(func, HARDWARE).mod


def parts_of_it(limit=0.0):
    """The same as a chain: the product with a packed weight, then ``max(y, limit)``."""
    anchor = Dense((), N, N, N, "float32")
    variant = variants(anchor, HARDWARE)[0]
    product = default_schedule(variant.prim_func(), HARDWARE).mod
    y = te.placeholder((N, N), name="y")
    z = te.compute((N, N), lambda i, j: tvm.tirx.max(y[i, j], tvm.tirx.const(limit, "float32")))
    relu = default_schedule(te.create_prim_func([y, z]), HARDWARE).mod
    packing = Packing(1, to_text(anchor), 0)
    return Chain(
        (
            Link(product, (0, 1), (N, N), "float32", packing),
            Link(relu, (~0,), (N, N), "float32"),
        ),
        HARDWARE,
    )


def test_a_chain_computes_what_its_group_does():
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((N, N)).astype("float32") for _ in range(2))
    target = tvm.target.Target(HARDWARE.target_json)
    run = Runner(parts_of_it(), lambda module: tvm.compile(module, target=target)["main"])
    arguments = [tvm.runtime.tensor(a) for a in (x, w, np.zeros((N, N), "float32"))]
    run.prepare([arguments])
    run(*arguments)
    want = np.maximum(x.astype("float64") @ w, 0)
    assert np.abs(arguments[-1].numpy() - want).max() <= 1e-5 * want.max()


@pytest.mark.slow
def test_the_child_measures_chains_and_finds_wrong_ones():
    definition, fused = relu_of_product()
    with LocalMeasurer(HARDWARE) as measurer:
        found = compare(measurer, "right", definition, fused, parts_of_it(), None, True)
        assert found.fused > 0 and found.parts_s > 0 and found.close
        wrong = compare(measurer, "wrong", definition, fused, parts_of_it(0.5), None, False)
    assert isinstance(wrong, Failure) and wrong.kind == "wrong_answer"


def test_spills_are_counted_in_the_compiled_code():
    """A tile of twice as many vectors as there are registers, and one that fits."""

    def summed(vectors):
        lanes = HARDWARE.lanes()
        x = te.placeholder((N,), name="x")
        w = te.placeholder((N, vectors * lanes), name="w")
        k = te.reduce_axis((0, N), "k")
        y = te.compute((vectors * lanes,), lambda j: te.sum(x[k] * w[k, j], axis=k), name="y")
        schedule = tvm.s_tir.Schedule(te.create_prim_func([x, w, y]))
        block = schedule.get_sblock("y")
        copy = schedule.cache_write(block, 0, "local")
        schedule.vectorize(schedule.split(schedule.get_loops(copy)[0], [None, lanes])[1])
        j, k_loop = schedule.get_loops(block)
        outer, inner = schedule.split(j, [None, lanes])
        schedule.reorder(k_loop, outer, inner)
        schedule.vectorize(inner)
        schedule.unroll(outer)
        schedule.decompose_reduction(block, k_loop)
        return count_spills(as_main(schedule.mod), HARDWARE)

    few = summed(HARDWARE.vector_registers // 2)
    many = summed(2 * HARDWARE.vector_registers)
    assert few == 0
    assert many >= HARDWARE.vector_registers // 2
