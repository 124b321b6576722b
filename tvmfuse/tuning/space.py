"""The search space: MetaSchedule's own rules beside our templates, and how to move in it.

The two parts are searched apart (see :mod:`tvmfuse.tuning.allocate`): in one population the
rules' candidates, ten times as many and slower to make, drown the templates'.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule import _ffi_api
from tvm.s_tir.meta_schedule.logging import get_logging_func

from tvmfuse.hardware.record import Hardware
from tvmfuse.schedules.base import WRITTEN, blocks

SpaceFn = Callable[[Any, Hardware], list[Any]]

_MUTATION = {"tile": 0.45, "categorical": 0.40, "location": 0.05, "unroll": 0.05, "parallel": 0.05}
_JOBS_PER_CORE = 16
_MAX_REDUCTIONS = 2
_REDUCE = 2  # IterVar.CommReduce


class Context(ms.TuneContext):
    """A TuneContext whose making does not import tensor intrinsics (11-20 s of CPU)."""

    def __init__(
        self, module: Any, target: Any, generator: Any, strategy: Any, seed: int, threads: int
    ) -> None:
        self.__init_handle_by_constructor__(
            _ffi_api.TuneContext,
            module,
            target,
            generator,
            strategy,
            "main",
            threads,
            seed,
            get_logging_func(logging.getLogger(__name__)),
        )
        _ffi_api.TuneContextInitialize(self)


@derived_object
class MutateCategorical(ms.mutator.PyMutator):
    """Changes one categorical decision to another of its candidates.

    MetaSchedule's own mutators touch those categorical decisions only that set unrolling; our
    templates choose register tiles by them.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)

    def _initialize_with_tune_context(self, context: Any) -> None:
        """Nothing of the context is needed."""

    def apply(self, trace: Any, _: Any) -> Any:
        """Return the mutated trace, or None if it holds no such decision."""
        choices = [
            (inst, int(decision), len(inst.attrs[0]))
            for inst, decision in trace.decisions.items()
            if inst.kind.name == "SampleCategorical" and len(inst.attrs[0]) > 1
        ]
        if not choices:
            return None
        inst, old, n_candidates = self._random.choice(choices)
        new = (old + self._random.randrange(1, n_candidates)) % n_candidates
        return trace.with_decision(inst, new, True)

    def clone(self) -> Any:
        """Return an independent mutator."""
        return MutateCategorical(self._random.randrange(1 << 30))


def target_of(hardware: Hardware) -> Any:
    """Build the TVM target of a machine."""
    return tvm.target.Target(dict(hardware.target_json))


def postprocs() -> list[Any]:
    """What MetaSchedule's rules leave undone.

    RewriteLayout is left out on purpose: it changes the layout of an argument.
    """
    return [
        ms.postproc.DisallowDynamicLoop(),
        ms.postproc.RewriteParallelVectorizeUnroll(),
        ms.postproc.RewriteReductionBlock(),
    ]


def mutators(seed: int) -> dict[Any, float]:
    """How often each kind of decision is changed."""
    m = ms.mutator
    return {
        m.MutateTileSize(): _MUTATION["tile"],
        MutateCategorical(seed): _MUTATION["categorical"],
        m.MutateComputeLocation(): _MUTATION["location"],
        m.MutateUnroll(): _MUTATION["unroll"],
        m.MutateParallel(_JOBS_PER_CORE): _MUTATION["parallel"],
    }


def rule_spaces(module: Any, hardware: Hardware) -> list[Any]:
    """Schedules by MetaSchedule's own rules, with sampled decisions in their traces.

    Empty for kernels with more than two reductions (Winograd, attention): a batch of their
    candidates took 7 to 24 s of CPU to find, and none came near a template. Empty also for
    kernels that are written out: the rules see one block there.
    """
    if _reductions(module) > _MAX_REDUCTIONS or _written(module):
        return []
    rules = cpu_rules() if hardware.kind == "llvm" else hardware.kind
    generator = ms.space_generator.PostOrderApply(sch_rules=rules, postprocs=[], mutator_probs={})
    context = Context(module, target_of(hardware), generator, None, 0, 1)
    return list(context.generate_design_space())


def _reductions(module: Any) -> int:
    schedule = Schedule(module)
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    axes = [schedule.get(block).iter_vars for block in blocks]
    return sum(any(axis.iter_type == _REDUCE for axis in block) for block in axes)


def _written(module: Any) -> bool:
    return any(WRITTEN in block.annotations for block in blocks(Schedule(module)))


def cpu_rules() -> list[Any]:
    """MetaSchedule's rules for CPUs, but without unrolling by 512.

    Such candidates take a second and more to compile, five times the average, and win nowhere.
    """
    r = ms.schedule_rule
    return [
        r.ApplyCustomRule(),
        _auto_inline(),
        r.AddRFactor(max_jobs_per_core=_JOBS_PER_CORE, max_innermost_factor=64),
        r.MultiLevelTiling(
            structure="SSRSRS",
            max_innermost_factor=64,
            reuse_write=r.ReuseType(req="may", levels=[1, 2], scope="global"),
        ),
        r.ParallelizeVectorizeUnroll(
            max_jobs_per_core=_JOBS_PER_CORE,
            max_vectorize_extent=64,
            unroll_max_steps=[0, 16, 64],
            unroll_explicit=True,
        ),
        r.RandomComputeLocation(),
    ]


def _auto_inline() -> Any:
    return ms.schedule_rule.AutoInline(
        into_producer=False,
        into_consumer=True,
        inline_const_tensor=True,
        disallow_if_then_else=True,
        require_injective=True,
        require_ordered=True,
        disallow_op=["tirx.exp"],
    )


def make_context(
    module: Any, hardware: Hardware, seed: int, population: int, generations: int
) -> Context:
    """Build the context of an evolutionary search over given design spaces."""
    generator = ms.space_generator.ScheduleFn(
        _nothing, sch_rules=[], postprocs=postprocs(), mutator_probs=mutators(seed)
    )
    strategy = ms.search_strategy.EvolutionarySearch(
        population_size=population,
        genetic_num_iters=generations,
        init_measured_ratio=0.3,
        init_min_unmeasured=population // 4,
        eps_greedy=0.1,
    )
    return Context(module, target_of(hardware), generator, strategy, seed, hardware.cores)


def _nothing(schedule: Schedule) -> Schedule:
    """The spaces are handed over by hand; the generator carries postprocs and mutators only."""
    return schedule
