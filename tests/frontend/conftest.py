"""Shared: compile a workload with plain TVM and compare it with eager."""

import pytest
import torch


@pytest.fixture
def assert_matches_eager():
    """Import a module, run it without any pass of ours, and compare with eager."""
    tvm = pytest.importorskip("tvm")
    from tvm import relax

    from tvmfuse.frontend.import_model import import_module
    from tvmfuse.signature import flatten

    def check(module, *inputs):
        workload = import_module(module.eval(), inputs)
        executable = tvm.compile(workload.module, target=tvm.target.Target({"kind": "llvm"}))
        machine = relax.VirtualMachine(executable, tvm.cpu())
        arguments = flatten(workload.signature.input_tree, inputs)
        outputs = machine["main"](*[tvm.runtime.tensor(a.numpy()) for a in arguments])
        with torch.no_grad():
            expected = flatten(workload.signature.output_tree, module(*inputs))
        assert len(outputs) == len(expected) == len(workload.signature.outputs)
        for output, want, spec in zip(outputs, expected, workload.signature.outputs, strict=True):
            got = torch.from_numpy(output.numpy())
            assert spec.shape == tuple(want.shape)
            assert spec.dtype == str(want.dtype).removeprefix("torch.")
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
        return workload

    return check
