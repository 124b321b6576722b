"""Carrying out a plan, choosing kernels, packing and lifting weights."""

import dataclasses

import numpy as np
import pytest
import torch
import tvm
from torch import nn
from tvm import relax

from tvmfuse.errors import BuildError
from tvmfuse.fusion.group import Group
from tvmfuse.fusion.plan import Plan
from tvmfuse.fusion.planner import make_plan
from tvmfuse.passes.group import group_bindings
from tvmfuse.passes.lift_weights import lift_weights
from tvmfuse.passes.pipeline import fuse, lower
from tvmfuse.passes.relax_tools import bindings, op_name
from tvmfuse.passes.specialize import group_kernels, group_names, specialize
from tvmfuse.schedules import default_schedule


class Twins(nn.Module):
    """Two equal convolutions with their own weights, one shared layer, and a residual."""

    def __init__(self):
        super().__init__()
        self.a, self.b = (nn.Conv2d(16, 16, 5, padding=2) for _ in range(2))
        self.shared = nn.Conv2d(16, 16, 1)

    def forward(self, x):
        y = torch.relu(self.a(x))
        z = torch.relu(self.b(y))
        return self.shared(z) + self.shared(y)


@pytest.fixture(scope="module")
def twins(kit):
    torch.manual_seed(0)
    module, x = Twins().eval(), torch.randn(1, 16, 6, 7)
    low = lower(kit.workload(module, x), kit.HARDWARE)
    return module, x, low, make_plan(low, kit.HARDWARE)


def test_fused_module_computes_the_same(kit, twins):
    module, x, low, plan = twins
    fused = fuse(low, plan)
    kit.assert_same(kit.run(fused.module, x.numpy()), kit.eager(module, x))
    calls = group_names(fused.module)
    assert len(calls) == len(plan.groups)
    assert kit.kernels(fused.module) == []  # none is left outside of all groups
    for name in calls:
        assert int(fused.module[name].attrs["Primitive"]) == 1


def test_any_partition_can_be_carried_out(kit, twins):
    module, x, low, plan = twins
    alone = Plan(
        tuple(Group((m,), (o,)) for g in plan.groups for m, o in zip(g.members, g.ops, strict=True))
    )
    fused = fuse(low, alone)
    kit.assert_same(kit.run(fused.module, x.numpy()), kit.eager(module, x))
    assert len(group_names(fused.module)) == sum(len(g.members) for g in plan.groups)


def test_unknown_member_is_refused(twins):
    *_, low, plan = twins
    wrong = Plan((*plan.groups, Group(("nothing",), ("add",))))
    with pytest.raises(BuildError, match="'nothing', which the module does not bind"):
        group_bindings(low.module, wrong)


def test_member_of_two_groups_is_refused(twins):
    *_, low, plan = twins
    member = plan.groups[0].members[0]
    wrong = Plan((*plan.groups, Group((member,), ("x",))))
    with pytest.raises(BuildError, match=f"puts '{member}' into two groups"):
        group_bindings(low.module, wrong)


def test_equal_groups_share_their_kernels(kit, twins):
    *_, low, plan = twins
    groups = group_kernels(fuse(low, plan).module, kit.HARDWARE)
    convs = [g for g in groups if g.variants and g.variants[0].anchor.KH == 5]
    assert len(convs) == 2
    assert convs[0].kernels is convs[1].kernels
    assert len({id(g.kernels) for g in groups}) < len(groups)
    assert all(len(g.kernels) == max(1, len(g.variants)) for g in groups)


def test_group_without_anchor_has_one_kernel(kit):
    low = lower(kit.workload(nn.Softmax(-1), torch.randn(2, 5)), kit.HARDWARE)
    (group,) = group_kernels(fuse(low, make_plan(low, kit.HARDWARE)).module, kit.HARDWARE)
    assert group.variants == () and len(group.kernels) == 1 and group.weight == -1


def test_all_variants_of_a_group_agree(kit):
    """Each on the weight packed by itself from one logical weight, with its epilogue."""
    torch.manual_seed(0)
    convs = [nn.Conv2d(8, 16, 1), nn.Conv2d(16, 32, 3, padding=1), nn.Conv2d(32, 8, 1)]
    module, x = nn.Sequential(*convs[:2], nn.ReLU(), convs[2]), torch.randn(1, 8, 7, 6)
    low = lower(kit.workload(module, x), kit.HARDWARE)
    fused = fuse(low, make_plan(low, kit.HARDWARE))
    groups = group_kernels(fused.module, kit.HARDWARE)
    (conv,) = [g for g in groups if g.variants and g.variants[0].anchor.KH == 3]
    want = kit.eager(module, x)
    assert len(conv.variants) == 4
    for index, variant in enumerate(conv.variants):

        def choose(group, index=index):
            number = index if group is conv else 0
            scheduled = default_schedule(group.kernels[number], kit.HARDWARE)
            return number, scheduled.mod["main"]

        special = specialize(fused.module, groups, choose)
        kit.assert_same(kit.run(special, x.numpy()), want, variant.rtol * 2)


def first_choice(kit):
    cache = {}

    def choose(group):
        key = id(group.kernels)
        if key not in cache:
            cache[key] = default_schedule(group.kernels[0], kit.HARDWARE).mod["main"]
        return 0, cache[key]

    return choose


def test_weights_are_packed_once_and_kernels_shared(kit, twins):
    module, x, low, plan = twins
    fused = fuse(low, plan)
    groups = group_kernels(fused.module, kit.HARDWARE)
    packs = []

    def counted(variant):
        def pack(w):
            packs.append(w)
            return variant.pack(w)

        return dataclasses.replace(variant, pack=pack)

    groups = [dataclasses.replace(g, variants=tuple(map(counted, g.variants))) for g in groups]
    special = specialize(fused.module, groups, first_choice(kit))
    assert len(packs) == 3  # a, b and the shared one, which two groups read
    _, weights = lift_weights(special)
    convs = [w for w in weights if w.ndim > 1 and w.size >= 256]
    assert len(convs) == 3
    kernels = [f for f in special.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(kernels) == len({id(g.kernels) for g in groups})
    kit.assert_same(kit.run(special, x.numpy()), kit.eager(module, x), 2e-4)


def test_no_transform_is_left(kit, twins):
    *_, low, plan = twins
    fused = fuse(low, plan)
    groups = group_kernels(fused.module, kit.HARDWARE)
    special = specialize(fused.module, groups, first_choice(kit))
    calls = [op_name(b.value) for b in bindings(special["main"])]
    views = {"relax.reshape", ""}
    assert set(calls) <= {"relax.call_tir", *views} and calls.count("relax.call_tir") == len(groups)


def test_weights_are_lifted_in_order(kit):
    a, b = np.arange(4, dtype="float32"), np.ones(4, "float32")
    one, two = relax.const(a), relax.const(b)

    def body(builder, x):
        y = builder.emit(relax.op.add(x, one))
        z = builder.emit(relax.op.multiply(y, two))
        return builder.emit(relax.op.add(z, one))

    mod = kit.written(body, ((4,), "float32"))
    lifted, weights = lift_weights(mod)
    assert len(weights) == 2  # one constant read twice is one weight
    assert np.array_equal(weights[0], a) and np.array_equal(weights[1], b)
    main = lifted["main"]
    assert int(main.attrs["num_input"]) == 1
    assert [len(main.params), len(main.params[-1].ty.fields)] == [2, 2]
    executable = tvm.compile(lifted, target=tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    x = np.full(4, 2, "float32")
    got = machine["main"](tvm.runtime.tensor(x), [tvm.runtime.tensor(w) for w in weights])
    assert np.array_equal(got.numpy(), (x + a) * b + a)


def test_module_without_constants_has_no_weights(kit):
    mod = kit.written(lambda b, x: b.emit(relax.op.abs(x)), ((4,), "float32"))
    lifted, weights = lift_weights(mod)
    assert weights == [] and len(lifted["main"].params[-1].ty.fields) == 0


def test_constant_output_is_lifted(kit):
    values = np.arange(3, dtype="float32")
    mod = kit.written(lambda b, x: b.emit(relax.const(values)), ((4,), "float32"))
    _, weights = lift_weights(mod)
    assert len(weights) == 1 and np.array_equal(weights[0], values)
