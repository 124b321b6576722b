"""Where in the user's own code something happened."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import torch

_FOREIGN = tuple(f"{p}/" for p in (Path(torch.__file__).parent, Path(__file__).parent.parent))
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)\n\s*(?P<text>.*)'
)


def user_frame(error: BaseException) -> str:
    """Return `` at file:line, in name: text`` for the innermost frame outside torch, or ``""``."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_FOREIGN, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    return f" at {last.filename}:{last.lineno}, in {last.name}: {last.line}"


def onnx_node(node: Any) -> str:
    """The ONNX node (``node 'name' (Operator)``) that an operator comes from, or ``""``."""
    for path, kind in (node.meta.get("nn_module_stack") or {}).values():
        name = str(getattr(kind, "__qualname__", kind)).rpartition(".")[2]
        if name in ("OnnxNode", "OnnxChoice"):
            return str(path).rpartition(".")[2].rpartition("#")[0]
    return ""


def node_location(stack_trace: str | None) -> str:
    """Return ``file:line: text`` of the innermost user frame in a node's recorded trace."""
    found = [
        match
        for match in _FRAME.finditer(stack_trace or "")
        if not match["file"].startswith((*_FOREIGN, "<"))
    ]
    # A model made of torch's own layers only has no frame outside torch: show the innermost.
    found = found or list(_FRAME.finditer(stack_trace or ""))
    if not found:
        return "(the program records no source line)"
    last = found[-1]
    return f"{last['file']}:{last['line']}: {last['text'].strip()}{_in_branch(stack_trace)}"


def _in_branch(stack_trace: str | None) -> str:
    """What a branch of ``torch.cond`` calls: PyTorch traced it to generated code."""
    last = list(_FRAME.finditer(stack_trace or ""))[-1]
    text = last["text"].partition(";")[0].strip()
    inside = last["file"].startswith("<eval_with_key>") and "higher_order.cond" not in text
    return f" (in a branch of it: {text})" if inside else ""
