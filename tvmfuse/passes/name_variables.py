"""Give every variable of ``main`` a name of its own, so that plans can refer to bindings by name.

Before: ``lv, lv, gv``      After: ``v0, v1, v2``
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvmfuse.passes.relax_tools import MOVED


@mutator
class _Renamer(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.old_names: dict[str, str] = {}

    def visit_var_def_(self, var: relax.Var) -> relax.Var:
        return self._renamed(var, relax.Var)

    def visit_dataflow_var_def_(self, var: relax.DataflowVar) -> relax.Var:
        return self._renamed(var, relax.DataflowVar)

    def _renamed(self, var: relax.Var, kind: type) -> relax.Var:
        new = kind(f"v{len(self.old_names)}", var.ty)
        self.old_names[str(new.name)] = str(var.name)
        return new


@tvm.transform.module_pass(opt_level=0, name="NameVariables")
class NameVariables:
    """Placement: wherever a pass or plan speaks of variables by name.

    Parameters
    ----------
    origins
        Told under the old names, changed in place to the new ones; a variable that a pass made
        since has none.
    """

    def __init__(self, origins: dict[str, str] | None = None) -> None:
        self._origins = {} if origins is None else origins

    def transform_module(self, mod: tvm.IRModule, _ctx: Any) -> tvm.IRModule:
        """Run on ``main``."""
        mod = mod.clone()  # as the first pass of all it is given the caller's own
        renamer = _Renamer(mod)
        mod["main"] = renamer.visit_expr(mod["main"])
        before = dict(self._origins)
        self._origins.clear()
        for new, old in renamer.old_names.items():
            old = old.partition(MOVED)[0]
            if old in before:
                self._origins[new] = before[old]
        return mod
