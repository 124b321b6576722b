"""Give every variable of ``main`` a name of its own, so that plans can refer to bindings by name.

Before: ``lv, lv, gv``      After: ``v0, v1, v2``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.count = 0

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._renamed(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._renamed(var, relax.DataflowVar)

    def _renamed(self, var: relax.Var, kind: type) -> relax.Var:
        new = kind(f"v{self.count}", var.ty)
        self.count += 1
        return new


@tvm.transform.module_pass(opt_level=0, name="NameVariables")
class NameVariables:
    """Placement: wherever a pass or plan speaks of variables by name."""

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod["main"] = _Renamer(mod).visit_expr(mod["main"])
        return mod
