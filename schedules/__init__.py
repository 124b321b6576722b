"""Schedule templates: `default_schedule` for zero trials, `space` for the search."""

from __future__ import annotations

import logging

from tvm.s_tir import Schedule, ScheduleError
from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.cpu import TEMPLATES as CPU_TEMPLATES
from tvmfuse.schedules.cuda import TEMPLATES as CUDA_TEMPLATES
from tvmfuse.schedules.cuda.binding import launches

TEMPLATES = {"llvm": CPU_TEMPLATES, "cuda": CUDA_TEMPLATES}
_LOG = logging.getLogger(__name__)


def schedule_by_template(func: PrimFunc, hardware: Hardware) -> tuple[Schedule, str]:
    """Schedule ``func`` without measuring; returns the schedule and the template's name."""
    schedules, name = _first(func, hardware, tunable=False)
    return schedules[0], name


def default_schedule(func: PrimFunc, hardware: Hardware) -> Schedule:
    """Schedule ``func`` without measuring: the best by the templates' models."""
    return schedule_by_template(func, hardware)[0]


def space(func: PrimFunc, hardware: Hardware) -> list[Schedule]:
    """Schedules whose traces hold sampled decisions: the templates' part of the search space."""
    return _first(func, hardware, tunable=True)[0]


def _first(func: PrimFunc, hardware: Hardware, tunable: bool) -> tuple[list[Schedule], str]:
    for template in TEMPLATES[hardware.kind]:
        try:
            schedules = template.apply(func, hardware, tunable)
        except (ScheduleError, RuntimeError, ValueError) as error:
            # The kernel has a form that this template cannot take; the next one may.
            _LOG.debug("%s does not take the kernel: %s", template.name, error)
            continue
        if schedules and not tunable and hardware.gpu is not None:
            fits = launches(schedules[0].mod["main"], hardware.gpu)
            if not fits:
                _LOG.debug("%s gives no kernel: %s", template.name, fits.reason)
                continue
        if schedules:
            return schedules, template.name
    # The fallback takes every kernel, so only a kernel without a schedulable root gets here.
    return [base.new_schedule(func)], "none"
