#!/usr/bin/env python3
"""Time the planner on generated graphs: seconds for each size, and how they grow.

    python scripts/planning_time.py --sizes 2000 5000 10000 20000

The graphs are what lowering makes: convolutions with bias, activation and residual, gates that
are read twice, products, row reductions and concatenations, in the proportions of the zoo.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from typing import Any

import tvm
from tvm import relax, te, topi

from tvmfuse.fusion.merging import find_merges
from tvmfuse.fusion.planner import make_plan
from tvmfuse.fusion.rules import merging_rules
from tvmfuse.graph import Graph
from tvmfuse.hardware import Hardware, resolve_target
from tvmfuse.signature import Signature
from tvmfuse.workload import Workload

_SHAPE = (1, 14, 14, 32)
_BLOCK = 11  # operators of one block of a generated graph
MOST_S_FOR_2000 = 2.0


def _kernels() -> dict[str, Any]:
    """PrimFuncs of the kernels that generated graphs call, by the name of what they compute."""
    x, y = te.placeholder(_SHAPE, name="x"), te.placeholder(_SHAPE, name="y")
    bias = te.placeholder((_SHAPE[-1],), name="b")
    weight = te.placeholder((_SHAPE[-1], 1, 1, _SHAPE[-1]), name="w")
    made = {
        "conv2d": ([x, weight], _conv(x, weight)),
        "bias": ([x, bias], topi.add(x, bias)),
        "relu": ([x], topi.nn.relu(x)),
        "add": ([x, y], topi.add(x, y)),
        "sigmoid": ([x], topi.sigmoid(x)),
        "multiply": ([x, y], topi.multiply(x, y)),
        "softmax": ([x], topi.nn.softmax(x)),
    }
    return {
        name: te.create_prim_func([*inputs, out]).with_attr("global_symbol", name)
        for name, (inputs, out) in made.items()
    }


def _conv(x: Any, weight: Any) -> Any:
    channel = te.reduce_axis((0, _SHAPE[-1]), "rc")
    return te.compute(
        _SHAPE,
        lambda n, h, w, o: te.sum(x[n, h, w, channel] * weight[o, 0, 0, channel], channel),
        name="conv2d",
    )


def generated(operators: int) -> Workload:
    """A lowered workload of about so many operators."""
    builder = relax.BlockBuilder()
    functions = {name: builder.add_func(f, name) for name, f in _kernels().items()}
    ty = relax.TensorType(_SHAPE, "float32")
    inputs = [
        relax.Var("x", ty),
        relax.Var("w", relax.TensorType((_SHAPE[-1], 1, 1, _SHAPE[-1]), "float32")),
        relax.Var("b", relax.TensorType((_SHAPE[-1],), "float32")),
    ]
    number = iter(range(10 * operators))

    def emit(name: str, *arguments: Any) -> Any:
        call = relax.call_tir(functions[name], relax.Tuple(list(arguments)), ty)
        return builder.emit(call, f"v{next(number)}_{name}")

    with builder.function("main", inputs):
        with builder.dataflow():
            x, w, b = inputs
            for _ in range(max(1, operators // _BLOCK)):
                y = emit("relu", emit("bias", emit("conv2d", x, w), b))
                z = emit("bias", emit("conv2d", y, w), b)
                z = emit("relu", emit("add", z, x))
                gate = emit("sigmoid", z)
                x = emit("softmax", emit("add", emit("multiply", z, gate), x))
            out = builder.emit_output(relax.Tuple([x]))
        builder.emit_func_output(out)
    return Workload("generated", builder.finalize(), Signature((), ()), None, ())


def planning_s(workload: Workload, hardware: Hardware) -> dict[str, float]:
    """CPU seconds of the two halves of planning, and how many operators and groups there are."""
    begin = time.process_time()  # of this process: other load on the machine does not count
    merges = find_merges(Graph(workload.module), merging_rules(), hardware)
    middle = time.process_time()
    plan = make_plan(workload, hardware)
    end = time.process_time()
    operators = sum(len(g.members) for g in plan.groups)
    return {
        "operators": operators, "groups": len(plan.groups), "merges": len(merges.chosen),
        "merge_s": middle - begin, "group_s": end - middle, "s": end - begin,
    }  # fmt: skip


def main() -> int:
    """Print a table or JSON; exit code 1 when a figure asked for is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", nargs="+", type=int, default=[2000, 5000, 10000, 20000])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    hardware = resolve_target("llvm")
    rows = [planning_s(generated(size), hardware) for size in sorted(asked.sizes)]
    for row in rows:
        row["s_per_n_log_n"] = row["s"] / (row["operators"] * math.log2(row["operators"]))
    if asked.json:
        print(json.dumps({"tvm": tvm.__version__, "rows": rows}, indent=1))
    else:
        for row in rows:
            print("  ".join(f"{k} {v:.3g}" for k, v in row.items()))
    slow = [r for r in rows if r["operators"] <= 2000 and r["s"] > MOST_S_FOR_2000]
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
