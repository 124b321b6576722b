"""What the passes behind scheduling share: ``main`` is walked over once and written anew."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from tvmfuse.passes.relax_tools import bindings, with_variables


class MainRewriter:
    """Base of a rewriter of ``main``, a chain of calls of scheduled kernels; run it once.

    Attributes
    ----------
    mod, main
        What is rewritten.
    builder
        Takes the new bindings, and has all kernels of the module.
    remap
        What stands for each variable of ``main``; its parameters at first.
    """

    def __init__(self, mod: tvm.IRModule) -> None:
        self.mod, self.main = mod, mod["main"]
        functions = {gv: f for gv, f in mod.functions_items() if gv.name_hint != "main"}
        self.builder = relax.BlockBuilder(tvm.IRModule(functions))
        self.remap: dict[Any, Any] = {p: relax.Var(p.name, p.ty) for p in self.main.params}

    def run(self) -> tvm.IRModule:
        """The rewritten module, without what nothing calls any more."""
        with self.builder.function("main", list(self.remap.values())):
            with self.builder.dataflow():
                for binding in bindings(self.main):
                    self.write(binding)
                outputs = self.builder.emit_output(with_variables(self.main.body.body, self.remap))
            self.builder.emit_func_output(outputs)
        return relax.transform.DeadCodeElimination(["main"])(self.builder.finalize())

    def write(self, binding: Any) -> None:
        """Emit what becomes of a binding, and let ``remap`` say what stands for its variable."""
        raise NotImplementedError
