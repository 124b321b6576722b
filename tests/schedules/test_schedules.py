"""What all templates share: the moves of `base`, the chain, the variants of an anchor."""

import pytest
import tvm
from tvm import te

from tvmfuse.schedules import TEMPLATES, base, default_schedule
from tvmfuse.schedules.anchor import Dense
from tvmfuse.schedules.cpu.contraction import dense
from tvmfuse.schedules.cpu.variants import variants


def square(n=64):
    x = te.placeholder((4, n), name="x")
    y = te.compute((4, n), lambda *i: x(*i) * x(*i), "square")
    return te.create_prim_func([x, y])


def test_variants_of_a_plain_convolution(kit):
    names = {v.name for v in variants(kit.conv(1, 14, 14, 64, 64, pad=1), kit.AVX512)}
    assert names == {"direct", "winograd2", "winograd4", "winograd4_rows"}


@pytest.mark.parametrize(
    "extra, wanted",
    [
        ({"stride": 2}, ("direct",)),
        ({"groups": 4}, ("direct",)),
        ({"groups": 64}, ("depthwise",)),
        ({"k": 1}, ("direct",)),
        ({"dtype": "float16"}, ("direct",)),
    ],
)
def test_variants_of_other_convolutions(kit, extra, wanted):
    conv = kit.conv(1, 14, 14, 64, 64, pad=1, **extra)
    assert tuple(v.name for v in variants(conv, kit.AVX512)) == wanted


def test_variants_of_a_product(kit):
    (only,) = variants(Dense((), 1, 512, 1000, "float32"), kit.AVX512)
    assert only.name == "direct" and only.weight_shape == (125, 512, 8)


def test_favourite_comes_first(kit):
    deep = variants(kit.conv(1, 56, 56, 64, 64, pad=1), kit.AVX512)
    assert deep[0].name.startswith("winograd")  # 2.25 to 4 times fewer products
    thin = variants(kit.conv(1, 1, 1, 256, 256, pad=1), kit.AVX512)
    assert thin[0].name == "direct"  # one output of a tile of 16 is used


def test_all_variants_agree(kit):
    conv = kit.conv(1, 6, 7, 16, 32, pad=1)
    found = variants(conv, kit.AVX512)
    assert len(found) == 4
    for variant in found:
        case = kit.Case(variant, "bias")
        case.check(default_schedule(case.func, kit.AVX512).mod["main"])


def test_own_templates_of_tuning_are_these(kit):
    from tvmfuse.tuning.search import own_templates
    from tvmfuse.tuning.task import as_main

    module = as_main(kit.kernel(dense(Dense((), 4, 8, 32, "float32"), kit.AVX512)))
    own = own_templates()
    default = own.default_of(module, kit.AVX512)
    wanted = default_schedule(module["main"], kit.AVX512)
    tvm.ir.assert_structural_equal(default.mod, wanted.mod)
    assert len(own.space_of(module, kit.AVX512)) > 1


def test_template_names_are_distinct():
    names = [t.name for t in TEMPLATES["llvm"]]
    assert len(set(names)) == len(names) and names[-1] == "cpu.fallback"


@pytest.mark.parametrize("tunable", [False, True])
def test_pick(tunable):
    sch = base.new_schedule(square())
    base.pick(sch, [2, 4, 8], 4, tunable)
    (inst,) = [i for i in sch.trace.insts if i.kind.name == "SampleCategorical"]
    assert [int(c) for c in inst.attrs[0]] == [2, 4, 8]
    if not tunable:
        assert int(sch.trace.decisions[inst]) == 1


def test_pick_refuses_a_default_outside():
    with pytest.raises(ValueError, match="16"):
        base.pick(base.new_schedule(square()), [2, 4, 8], 16, False)


def test_block_facts():
    sch = base.new_schedule(square())
    (block,) = base.blocks(sch)
    assert (block.name, block.kinds, block.extents) == ("square", "SS", (4, 64))
    assert block.family == "" and block.reduction == ()
    assert base.find_family([block], "contraction") is None


@pytest.mark.parametrize("extent, lanes, wanted", [(64, 16, 16), (24, 16, 8), (7, 16, 1)])
def test_vector_width(extent, lanes, wanted):
    assert base.vector_width(extent, lanes) == wanted


def test_divisors():
    assert base.divisors(12) == [1, 2, 3, 4, 6, 12]
    assert base.divisors(12, 4) == [1, 2, 3, 4]
    assert base.divisors(13, 12) == [1]


def test_imbalance():
    assert base.imbalance(4, 2) == 1
    assert base.imbalance(3, 2) == pytest.approx(4 / 3)
    assert base.imbalance(1, 4) == 4


def test_columns_in_l1():
    assert base.columns_in_l1(4096) == base.L1_WAYS  # all in one set
    assert base.columns_in_l1(2048) == 2 * base.L1_WAYS
    assert base.columns_in_l1(100) > base.columns_in_l1(2048)


def test_depth_of_a_foreign_loop_is_refused():
    x = te.placeholder((4, 8), name="x")
    y = te.compute((4, 8), lambda *i: x(*i) * x(*i), "y")
    z = te.compute((4, 8), lambda *i: y(*i) * x(*i), "z")
    sch = base.new_schedule(te.create_prim_func([x, z]))
    foreign = sch.get_loops(sch.get_sblock("y"))[0]
    with pytest.raises(ValueError, match="not around block z"):
        base.depth_in(sch, sch.get_sblock("z"), foreign)
