"""Modules from PyTorch, run before and after a pass."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
import tvm
from tvm import relax

from tvmfuse.frontend.import_model import import_module
from tvmfuse.hardware import resolve_target
from tvmfuse.passes.name_variables import NameVariables
from tvmfuse.passes.relax_tools import bindings, op_name
from tvmfuse.signature import flatten

HARDWARE = resolve_target("llvm", 2)
TARGET = HARDWARE.target_json


def imported(module, *inputs):
    """The module's Relax form with unique variable names, as the passes find it."""
    workload = import_module(module.eval(), inputs)
    canonical = relax.transform.CanonicalizeBindings()(workload.module)
    return NameVariables()(canonical)


def workload(module, *inputs):
    """The module as a Workload."""
    return import_module(module.eval(), inputs)


def written(body, *types, params=()):
    """``main`` of one dataflow block: ``body(builder, *args)`` gives the output."""
    builder = relax.BlockBuilder()
    args = [relax.Var(f"x{i}", relax.TensorType(s, d)) for i, (s, d) in enumerate(types)]
    with builder.function("main", args):
        with builder.dataflow():
            out = builder.emit_output(body(builder, *args))
        builder.emit_func_output(out)
    return NameVariables()(builder.finalize())


def ops(mod):
    """Operators of ``main`` in order, without their namespace."""
    return [op_name(b.value).removeprefix("relax.") for b in bindings(mod["main"])]


def count(mod, name):
    """How often ``main`` calls an operator."""
    return ops(mod).count(name)


def run(mod, *inputs, legalize=True):
    """Outputs of ``main`` as NumPy arrays, compiled by plain TVM."""
    executable = tvm.compile(mod, target=tvm.target.Target({"kind": "llvm"}))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    tensors = [tvm.runtime.tensor(np.ascontiguousarray(i)) for i in inputs]
    out = machine["main"](*tensors)
    return [o.numpy() for o in out] if not hasattr(out, "numpy") else [out.numpy()]


def eager(module, *inputs):
    """Outputs of the PyTorch module as NumPy arrays, flat."""
    with torch.no_grad():
        out = module(*inputs)
    return [o.numpy() for o in (out if isinstance(out, (tuple, list)) else (out,))]


def assert_same(got, want, rtol=1e-5):
    """Equal NaNs, and errors small against the largest magnitude."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert np.array_equal(np.isnan(a), np.isnan(b))
        finite = np.isfinite(b)
        assert np.array_equal(a[~finite & ~np.isnan(b)], b[~finite & ~np.isnan(b)])
        if finite.any():
            scale = max(np.abs(b[finite]).max(), 1e-30)
            assert np.abs(a[finite] - b[finite]).max() <= rtol * scale


def shaken(module, seed=0):
    """Random statistics and affine parameters for every batch norm."""
    generator = torch.Generator().manual_seed(seed)
    for m in module.modules():
        if isinstance(m, torch.nn.BatchNorm2d):
            m.running_mean.copy_(torch.randn(m.num_features, generator=generator))
            m.running_var.copy_(torch.rand(m.num_features, generator=generator) + 0.5)
            if m.affine:
                m.weight.data.copy_(torch.randn(m.num_features, generator=generator))
                m.bias.data.copy_(torch.randn(m.num_features, generator=generator))
    return module.eval()


def kernels(mod):
    """Names of the kernels that ``main`` calls by ``call_tir``, without numbers."""
    found = []
    for binding in bindings(mod["main"]):
        if op_name(binding.value) == "relax.call_tir":
            found.append(binding.value.args[0].name_hint.rstrip("0123456789_"))
    return found


flat = flatten


@pytest.fixture(scope="session")
def kit():
    """This file's functions."""
    return sys.modules[__name__]
