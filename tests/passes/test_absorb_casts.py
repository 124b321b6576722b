"""Casts inside kernels: what joins, what stays, and that the numbers are right."""

import numpy as np
import pytest
import tvm
from tvm import relax, te, topi

from tvmfuse.passes.absorb_casts import AbsorbCasts, with_casts
from tvmfuse.schedules.base import blocks, new_schedule


def lowered(kit, body, *types):
    return kit.NameVariables()(relax.transform.LegalizeOps()(kit.written(body, *types)))


def kernel_names(mod):
    found = []
    for block in mod["main"].body.blocks:
        for b in block.bindings:
            if isinstance(b.value, relax.Call):
                found.append(str(b.value.args[0].name_hint).rstrip("0123456789_"))
    return found


def test_reading_and_writing_halves_is_part_of_the_kernel(kit):
    def body(builder, x, h):
        wide = builder.emit(relax.op.astype(h, "float32"))
        return relax.op.astype(builder.emit(relax.op.add(x, wide)), "float16")

    types = ((3, 5), "float32"), ((3, 5), "float16")
    mod = AbsorbCasts()(lowered(kit, body, *types))
    assert kernel_names(mod) == ["add"]
    x = np.random.default_rng(0).standard_normal((3, 5)).astype("float32")
    h = (x * 3).astype("float16")
    (got,) = kit.run(mod, x, h)
    assert got.dtype == np.float16 and (got == (x + h.astype("float32")).astype("float16")).all()


def test_every_reader_widens_for_itself(kit):
    def body(builder, h):
        wide = builder.emit(relax.op.astype(h, "float32"))
        sums = builder.emit(relax.op.sum(wide, axis=[1], keepdims=True))
        return relax.op.add(builder.emit(relax.op.exp(wide)), sums)

    mod = AbsorbCasts()(lowered(kit, body, ((3, 5), "float16")))
    assert "cast" not in kernel_names(mod)
    h = np.random.default_rng(0).standard_normal((3, 5)).astype("float16")
    (got,) = kit.run(mod, h)
    wide = h.astype("float32")
    assert np.abs(got - (np.exp(wide) + wide.sum(1, keepdims=True))).max() < 1e-5


def test_rounding_behind_a_sum_stays_a_kernel(kit):
    def body(builder, x):
        return relax.op.astype(builder.emit(relax.op.sum(x, axis=[1])), "float16")

    mod = AbsorbCasts()(lowered(kit, body, ((3, 5), "float32")))
    assert kernel_names(mod) == ["sum", "cast"]


def test_a_value_that_is_also_read_wide_is_not_rounded_inside(kit):
    def body(builder, x):
        wide = builder.emit(relax.op.exp(x))
        half = builder.emit(relax.op.astype(wide, "float16"))
        return relax.op.add(wide, builder.emit(relax.op.astype(half, "float32")))

    mod = AbsorbCasts()(lowered(kit, body, ((3, 5), "float32")))
    assert kernel_names(mod) == ["tir_exp", "cast", "add"]


@pytest.mark.parametrize("narrow", ["", "bfloat16"])
def test_blocks_of_casts_are_inlined_and_attributes_stay(narrow):
    x, y = (te.placeholder((4, 4), "float32", name=n) for n in "xy")
    func = te.create_prim_func([x, y, topi.add(x, y)], index_dtype_override="int64")
    func = func.with_attr("op_pattern", 1)
    made = with_casts(func, {1: "bfloat16"}, narrow)
    assert len(blocks(new_schedule(made))) == 1
    assert [str(p.ty.dtype) for p in made.params] == ["float32", "bfloat16", narrow or "float32"]
    assert int(made.attrs["op_pattern"]) == 1
    assert isinstance(made, tvm.tirx.PrimFunc)
