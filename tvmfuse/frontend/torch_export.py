"""From ``torch.nn.Module`` to Relax by way of ``torch.export``."""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.utils import _pytree as pytree

from tvmfuse.errors import ImportModelError, UnsupportedOperatorError, UntraceableError
from tvmfuse.frontend.bounds import guard_indices
from tvmfuse.frontend.constants import ConstantFolder
from tvmfuse.frontend.converters import converters
from tvmfuse.frontend.converters.products import OTHER_TYPES
from tvmfuse.frontend.decompose import decompose
from tvmfuse.frontend.decompositions import decompositions
from tvmfuse.frontend.fx_normalize import normalize
from tvmfuse.frontend.keywords import apart
from tvmfuse.frontend.known_faults import reason_to_refuse
from tvmfuse.frontend.locate import node_location, onnx_node, user_frame
from tvmfuse.frontend.simple_calls import table_of
from tvmfuse.frontend.states import take_states
from tvmfuse.signature import IndexBound
from tvmfuse.workload import State

# Decomposing these would only hide what they are: the converter knows each as one operator,
# and their expansions (pooling with indices, flattened batches, clamps) fuse worse.
_KEPT = frozenset(
    f"aten::{name}"
    for name in (
        "conv1d", "conv2d", "conv3d", "linear", "matmul", "max_pool1d", "max_pool2d",
        "max_pool3d", "hardswish", "hardsigmoid", "silu", "gelu", "leaky_relu", "elu", "selu",
        "group_norm", "layer_norm", "avg_pool1d",
    )
)  # fmt: skip

# TVM's norms know no doubles.
_NOT_OF_DOUBLES = frozenset(("aten::group_norm", "aten::layer_norm"))


def export_program(module: torch.nn.Module, example_inputs: tuple[Any, ...]) -> Any:
    """Trace ``module`` into a ``torch.export.ExportedProgram``.

    Raises
    ------
    ImportModelError
        The module is in training mode, an input requires gradients, the module fails on its
        inputs, or does not export; the message says where in the user's code.
    """
    whole, given = module, example_inputs
    module, args, kwargs = apart(module, example_inputs)
    training = _in_training(module)
    if training:
        raise ImportModelError(
            f"the model is in training mode ({training[0]}): dropout and batch norm would not "
            "behave as in inference; call model.eval() first"
        )
    for path, leaf in pytree.tree_leaves_with_path((*args, kwargs) if kwargs else args):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            raise ImportModelError(
                f"the example input {pytree.keystr(path)} requires gradients: a compiled model is "
                "for inference and computes none; pass .detach()"
            )
    said, graph = io.StringIO(), ""
    try:
        with torch.no_grad(), warnings.catch_warnings(), contextlib.redirect_stderr(said):
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:
        # torch.export prints the graph so far, thousands of lines of a detector.
        graph = f"{error.partial_fx_graph}\n" if hasattr(error, "partial_fx_graph") else ""
        raise _export_error(whole, given, error) from error
    finally:
        sys.stderr.write(said.getvalue().replace(graph, "") if graph else said.getvalue())


def _in_training(module: torch.nn.Module) -> list[str]:
    """Parts in training mode; those of an exported program (PT2E's are such) do what they did when
    it was exported, whatever their flags say."""
    if isinstance(module, fx.GraphModule):
        called = {n.target for n in module.graph.nodes if n.op == "call_module"}
        if called <= {"_guards_fn"}:
            return []
    return [name or "the model" for name, part in module.named_modules() if part.training]


def _export_error(
    module: torch.nn.Module, example_inputs: tuple[Any, ...], error: Exception
) -> ImportModelError:
    """Tell a model that fails by itself from one that only cannot be traced."""
    try:
        with torch.no_grad():
            module(*example_inputs)
    except Exception as own:
        return ImportModelError(
            f"the model fails on its example inputs: {type(own).__name__}: {_brief(own)}"
            f"{user_frame(own)}"
        )
    return UntraceableError(
        f"torch.export cannot trace the model{user_frame(error)}: {type(error).__name__}: "
        f"{_brief(error)}. Control flow and shapes must not depend on the values of tensors; "
        "tvmfuse.compile(module, inputs, fallback='eager') compiles the graphs between"
    )


def _brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if line.startswith(_HINT)), "")  # TorchDynamo's
    said = lines[0] if lines else "no message"
    if "aliasing" in said and not told:
        told = "Let branches return a copy of an operand: operand.clone()"
    return (f"{said} {told.removeprefix(_HINT).strip()}" if told else said).rstrip(".")


_HINT = "Hint:"


@dataclass(frozen=True)
class Converted:
    """A program in Relax, and how to find its values again.

    Parameters
    ----------
    module
        The ``tvm.IRModule``.
    program
        The functional, normalised program that was translated; PyTorch can run it.
    origins
        Variable of ``main`` to the node of ``program`` with the same value.
    states
        Buffers that are inputs and outputs of ``main`` before all others.
    bounds, checks
        See :class:`tvmfuse.workload.Workload`.
    """

    module: Any
    program: Any
    origins: dict[str, str]
    states: tuple[State, ...] = ()
    bounds: tuple[IndexBound, ...] = ()
    checks: tuple[str, ...] = ()


def convert(program: Any) -> Any:
    """The module of :func:`converted` alone."""
    return converted(program).module


def converted(program: Any) -> Converted:
    """Turn an exported program into a Relax module.

    Parameters
    ----------
    program
        The ``torch.export.ExportedProgram``; it is not changed.

    Returns
    -------
    Converted
        The module's ``main`` takes the tensor inputs in flat order and returns a tuple of
        tensors; the weights are constants in it and its bindings are in dataflow blocks.

    Raises
    ------
    UnsupportedOperatorError
        Operators without a converter, or known to be imported wrongly: all of them, with where
        the user's code calls them.
    ImportModelError
        The program has dynamic shapes, changes its inputs, returns no tensor, or the converter
        fails.
    """
    from tvm import relax

    _refuse_dynamic_inputs(program)
    program = functional(program)
    states = take_states(program)
    _refuse_unsupported(program)
    bounds, checks = guard_indices(program, len(states))
    normalize(program)
    _drop_constants(program)
    module, origins = _translate(program)
    module = relax.transform.ConvertToDataflow(min_size=1)(module)
    relax.analysis.well_formed(module)
    return Converted(module, program, origins, states, bounds, checks)


def _translate(program: Any) -> tuple[Any, dict[str, str]]:
    """Run TVM's converter on what depends on the input; tell which call of the user's fails."""
    import tvm
    from tvm import relax
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    importer = ExportedProgramImporter()
    folder = importer.folder = ConstantFolder(program)  # converters ask it for parameters
    current: list[fx.Node] = []
    origins: dict[str, str] = {}

    def constant(value: torch.Tensor) -> Any:
        return relax.const(importer._convert_pytorch_tensor_to_tvm(value.contiguous()))

    def traced(converter: Callable[[fx.Node], Any]) -> Callable[[fx.Node], Any]:
        def convert_node(node: fx.Node) -> Any:
            current[:] = [node]
            value = folder.fold(node)
            if value is not None:
                return pytree.tree_map(constant, value)
            result = converter(node)
            if isinstance(result, relax.Var):
                origins.setdefault(str(result.name), node.name)
            return result

        return convert_node

    importer.convert_map = {k: traced(f) for k, f in _convert_map(importer).items()}
    try:
        module = importer.from_exported_program(
            program,
            keep_params_as_input=False,
            unwrap_unit_return_tuple=False,
            no_bind_return_tuple=False,
            custom_convert_map=None,
        )
    except Exception as error:
        place = f"{current[0].target} at {node_place(current[0])}" if current else "the program"
        raise ImportModelError(
            f"TVM {tvm.__version__} cannot convert {place}: {type(error).__name__}: {_brief(error)}"
        ) from error
    return module, origins


def _convert_map(importer: Any) -> dict[str, Callable[[fx.Node], Any]]:
    """TVM's converters with ours over them."""
    known = dict(importer.convert_map)
    for name, f in converters().items():
        known[name] = functools.partial(f, importer)
    for name, f in OTHER_TYPES.items():
        known[name] = _by_type(known[name], functools.partial(f, importer))
    return known


def _by_type(
    float32: Callable[[fx.Node], Any], others: Callable[[fx.Node], Any]
) -> Callable[[fx.Node], Any]:
    def convert_node(node: fx.Node) -> Any:
        return (float32 if node.meta["val"].dtype == torch.float32 else others)(node)

    return convert_node


def _refuse_dynamic_inputs(program: Any) -> None:
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        extents = value.shape if isinstance(value, torch.Tensor) else ()
        if not all(isinstance(extent, int) for extent in extents):
            raise ImportModelError(
                f"input {node.name!r} has the dynamic shape {tuple(extents)}; every extent must "
                "be known at compile time: export without dynamic_shapes"
            )


def functional(program: Any) -> Any:
    """The program in simple operators without side effects; raises ImportModelError."""
    values = (node.meta.get("val") for node in program.graph.nodes)
    doubles = any(isinstance(v, torch.Tensor) and v.dtype == torch.float64 for v in values)
    kept = _KEPT - _NOT_OF_DOUBLES if doubles else _KEPT
    ours = decompositions()
    simple = decompose(program, table_of(kept, ours))
    if simple is not None:
        return simple
    table = torch.export.default_decompositions()
    for operator in list(table):
        if operator.name().partition(".")[0] in kept:
            del table[operator]
    table.update(ours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return program.run_decompositions(table)
        except Exception as error:  # PyTorch raises many kinds, some of them only here
            raise ImportModelError(
                f"PyTorch cannot take the program apart into simple operators"
                f"{user_frame(error)}: {type(error).__name__}: {_brief(error)}"
            ) from error


def _refuse_unsupported(program: Any) -> None:
    reasons: dict[str, list[str]] = {}
    for node, reason in refusals(program.graph).items():
        reasons.setdefault(f"{node.target} {reason}", []).append(node_place(node))
    if not reasons:
        return
    lines = [f"  {what}\n    {_places(places)}" for what, places in reasons.items()]
    raise UnsupportedOperatorError(
        f"{len(reasons)} operator(s) cannot be imported:\n" + "\n".join(lines)
    )


def refusals(graph: fx.Graph) -> dict[fx.Node, str]:
    """Nodes of a functional program's graph that cannot be imported, each with the reason."""
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    known = _convert_map(ExportedProgramImporter())
    found = {}
    for node in graph.nodes:
        if node.op == "call_function":
            target = getattr(node.target, "__name__", str(node.target))
            reason = "has no converter" if target not in known else reason_to_refuse(node)
            if reason:
                found[node] = reason
    return found


def node_place(node: fx.Node) -> str:
    """Where the user's code calls a node."""
    return onnx_node(node) or node_location(node.meta.get("stack_trace"))


def _places(places: list[str]) -> str:
    first = list(dict.fromkeys(places))
    more = f" (and {len(first) - 3} more places)" if len(first) > 3 else ""
    return "\n    ".join(first[:3]) + more


def _drop_constants(program: Any) -> None:
    """Remove inputs and outputs that are no tensors: the signature's trees keep them."""
    signature = program.graph_signature
    for spec in list(signature.input_specs):
        if spec.kind is InputKind.USER_INPUT and isinstance(spec.arg, ConstantArgument):
            signature.input_specs.remove(spec)
            for node in program.graph.find_nodes(op="placeholder"):
                if node.name == spec.arg.name:
                    program.graph.erase_node(node)
    output = next(n for n in reversed(program.graph.nodes) if n.op == "output")
    if not any(isinstance(a, fx.Node) for a in output.args[0]):
        raise ImportModelError("the model returns no tensor: there is nothing to compile")
    output.args = (tuple(a for a in output.args[0] if isinstance(a, fx.Node)),)
    signature.output_specs[:] = [
        s for s in signature.output_specs if not isinstance(s.arg, ConstantArgument)
    ]
