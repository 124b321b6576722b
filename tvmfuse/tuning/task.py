"""Task: one distinct kernel to tune, with how often it occurs and its other algorithms."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import analysis

from tvmfuse.database import task_hash
from tvmfuse.fusion.plan import Plan
from tvmfuse.passes.group import PREFIX
from tvmfuse.passes.specialize import GroupKernel


@dataclass(frozen=True)
class Task:
    """One kernel to tune.

    Parameters
    ----------
    name
        For people, e.g. ``"conv2d_bias_relu_3"``.
    module
        ``tvm.IRModule`` with one unscheduled PrimFunc ``main`` whose ``global_symbol`` is
        ``main``.
    weight
        How often the kernel runs in one inference.
    flops
        Floating point operations of one call of ``module``.
    key
        Structural hash of ``module``, 16 hex digits.
    variants
        Modules that compute the same with another algorithm (and another weight layout);
        each is a workload of its own in the tuning log.
    tolerances
        Largest accepted error relative to the output's magnitude, for ``module`` and then
        for each variant; ``None`` or a missing entry means the default of the dtype.
    """

    name: str
    module: Any
    weight: int
    flops: float
    key: str
    variants: tuple[Any, ...] = ()
    tolerances: tuple[float | None, ...] = ()

    def __post_init__(self) -> None:
        if self.weight < 1:
            raise ValueError(f"Task.weight must be positive, got {self.weight} for {self.name}")
        if len(self.tolerances) > 1 + len(self.variants):
            raise ValueError(
                f"task {self.name}: {len(self.tolerances)} tolerances for "
                f"{1 + len(self.variants)} modules"
            )

    @property
    def modules(self) -> tuple[Any, ...]:
        """The module followed by its variants."""
        return (self.module, *self.variants)

    def tolerance(self, index: int) -> float | None:
        """Tolerance of ``modules[index]``, or None for the default of the dtype."""
        return self.tolerances[index] if index < len(self.tolerances) else None


def make_task(
    name: str,
    func: Any,
    weight: int = 1,
    variants: tuple[Any, ...] = (),
    tolerances: tuple[float | None, ...] = (),
) -> Task:
    """Build a Task from PrimFuncs or one-function modules; counts flops and hashes.

    Parameters
    ----------
    name
        For people.
    func
        Unscheduled ``PrimFunc``, or an ``IRModule`` with one, as ``main``.
    weight
        How often the kernel runs in one inference.
    variants
        Other algorithms for the same kernel, as PrimFuncs or modules.
    tolerances
        See :class:`Task`.
    """
    module = as_main(func)
    return Task(
        name=name,
        module=module,
        weight=weight,
        flops=count_flops(module),
        key=task_hash(module),
        variants=tuple(as_main(v) for v in variants),
        tolerances=tolerances,
    )


def as_main(func: Any) -> Any:
    """Wrap a copy of a PrimFunc, or of the only PrimFunc of a module, as ``main``."""
    if isinstance(func, tvm.IRModule):
        functions = [f for f in func.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
        if len(functions) != 1:
            raise ValueError(f"a task module holds one PrimFunc, this one has {len(functions)}")
        func = functions[0]
    return private_copy(tvm.IRModule({"main": func.with_attr("global_symbol", "main")}))


def private_copy(module: Any) -> Any:
    """Copy a module so deeply that scheduling cannot reach the original.

    ``func.with_attr(...)`` shares the body with ``func``, and a ``Schedule`` that is the only
    owner of the new function rewrites that body in place (TVM 0.27).
    """
    return pickle.loads(pickle.dumps(module))


def count_flops(module: Any) -> float:
    """Operations of one call, as TVM's analysis counts them."""
    return float(analysis.estimate_tir_flops(module))


def weight_bytes(groups: list[GroupKernel]) -> int:
    """Bytes of all packed weights of the model's favourite variants."""
    return sum(group.variants[0].weight_bytes for group in groups if group.variants)


def tasks_of(groups: list[GroupKernel], plan: Plan) -> list[Task]:
    """Distinct kernels worth tuning, with how often each occurs."""
    names = {g.members[-1]: "_".join(g.ops) for g in plan.groups}
    counts: dict[int, int] = {}
    first: dict[int, GroupKernel] = {}
    unwritten = {f"{PREFIX}{name}" for name in plan.unwritten}
    for group in groups:
        if group.name in unwritten:
            continue
        counts[id(group.kernels)] = counts.get(id(group.kernels), 0) + 1
        first.setdefault(id(group.kernels), group)
    tasks = []
    for number, (key, group) in enumerate(first.items()):
        label = names.get(group.name.removeprefix(PREFIX), group.name)
        tasks.append(
            make_task(
                f"{number:02d}_{label}",
                group.kernels[0],
                counts[key],
                group.kernels[1:],
                tuple(v.rtol for v in group.variants),
            )
        )
    return tasks
