"""Run a call with our decompositions in place of PyTorch's operators, and without."""

import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tvmfuse.frontend.decompositions import decompositions


class Decomposed(TorchDispatchMode):
    """Every operator of the table runs as its decomposition."""

    def __init__(self):
        super().__init__()
        self.table, self.used = decompositions(), set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in self.table:
            result = self.table[func](*args, **(kwargs or {}))
            if result is not NotImplemented:
                self.used.add(str(func).removeprefix("aten."))
                return result
        return func(*args, **(kwargs or {}))


@pytest.fixture
def same():
    """Check that ``call`` gives the same, and that the operator ``name`` was decomposed."""

    def check(name, call, *tensors, rtol=1e-5, atol=1e-6):
        with torch.no_grad():
            want = call(*tensors)
            with Decomposed() as mode:
                got = call(*tensors)
        assert name in mode.used, f"{name} was not called; {mode.used} were"
        leaves = zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True)
        for one, other in leaves:
            torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)

    return check
