"""The space holds templates and rules side by side, and mutation reaches both."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvmfuse.tuning import space
from tvmfuse.tuning.search import Templates
from tvmfuse.tuning.task import as_main


def test_rules_sample_tiles_and_templates_categories(machine, matmul, templates):
    (ours,) = templates.space_of(as_main(matmul()), machine)
    rules = space.rule_spaces(as_main(matmul()), machine)
    kinds = [{inst.kind.name for inst in s.trace.insts} for s in (ours, *rules)]
    assert "SampleCategorical" in kinds[0] and "SamplePerfectTile" not in kinds[0]
    assert any("SamplePerfectTile" in k for k in kinds[1:])


def test_no_rules_for_three_reductions(machine):
    def total(x, name):
        r = te.reduce_axis((0, 8), name=f"r{name}")
        return te.compute(x.shape[1:], lambda *i: te.sum(x[(r, *i)], axis=r), name=f"s{name}")

    tensors = [te.placeholder((8, 8, 8, 8), name="x")]
    for n in range(3):
        tensors.append(total(tensors[-1], n))
    x = tensors[0]
    three = as_main(te.create_prim_func([x, tensors[3]]))
    two = as_main(te.create_prim_func([x, tensors[2]]))
    assert space.rule_spaces(three, machine) == []
    assert space.rule_spaces(two, machine) != []


def test_templates_cannot_change_the_task_module(machine, matmul):
    """``with_attr`` shares the body, and a schedule rewrites what it alone owns (TVM 0.27)."""

    def careless(func, hardware):
        schedule = Schedule(tvm.IRModule({"main": func.with_attr("x", 1)}))
        schedule.split(schedule.get_loops(schedule.get_sblock("d"))[0], [None, 2])
        return schedule

    module = as_main(matmul())
    before = tvm_ffi.structural_hash(module)
    Templates(careless, careless).default_of(module, machine)
    assert tvm_ffi.structural_hash(module) == before


def test_postprocs_do_not_touch_template_schedules(machine, matmul, templates):
    (schedule,) = templates.space(matmul(), machine)
    before = schedule.mod
    context = space.make_context(as_main(matmul()), machine, 0, 8, 1)
    assert all(p.apply(schedule) for p in context.space_generator.postprocs)
    assert tvm_ffi.structural_equal(before, schedule.mod)


def test_mutate_categorical_changes_one_decision_to_another(machine, matmul, templates):
    (schedule,) = templates.space(matmul(), machine)
    trace = schedule.trace
    old = {str(i.outputs[0]): int(d) for i, d in trace.decisions.items()}
    mutated = space.MutateCategorical(1).apply(trace)
    new = {str(i.outputs[0]): int(d) for i, d in mutated.decisions.items()}
    assert sum(a != b for a, b in zip(old.values(), new.values(), strict=True)) == 1
    again = Schedule(as_main(matmul()))
    mutated.apply_to_schedule(again, remove_postproc=False)
    assert not tvm_ffi.structural_equal(again.mod, schedule.mod)


def test_mutate_categorical_refuses_a_trace_without_choice(matmul):
    assert space.MutateCategorical(1).apply(Schedule(as_main(matmul())).trace) is None


def test_evolution_hands_out_distinct_candidates(machine, matmul):
    module = as_main(matmul())
    context = space.make_context(module, machine, 3, 32, 2)
    spaces = space.rule_spaces(module, machine)
    database = ms.database.MemoryDatabase()
    context.pre_tuning(1000, 16, spaces, database, ms.cost_model.RandomModel(seed=1))
    candidates = context.generate_measure_candidates()
    assert len({tvm_ffi.structural_hash(c.sch.mod) for c in candidates}) == len(candidates) == 16


@pytest.mark.parametrize("module", ["torch", "tvm.s_tir.tensor_intrin"])
def test_making_a_context_does_not_import(module):
    code = f"""
import sys
sys.modules["torch"] = None
import tvm
from tvm import te
from tvmfuse.hardware.record import Hardware
from tvmfuse.tuning.space import make_context
from tvmfuse.tuning.task import as_main
a = te.placeholder((8,), name="a")
m = as_main(te.create_prim_func([a, te.compute((8,), lambda i: a[i] * a[i], name="b")]))
h = Hardware("llvm", "k", "llvm", {{"kind": "llvm", "num-cores": 1}}, (), 1, 32, 16, 1, 1, 1)
make_context(m, h, 0, 8, 1)
assert not sys.modules.get({module!r})
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_target_is_that_of_the_record(machine):
    assert space.target_of(machine).kind.name == "llvm"
    assert isinstance(space.target_of(machine), tvm.target.Target)
