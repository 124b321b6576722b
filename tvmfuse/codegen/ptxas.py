"""What ``ptxas -v`` says of each kernel."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

_ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")


@dataclass(frozen=True)
class KernelUsage:
    """Resources of one compiled kernel.

    Parameters
    ----------
    name
        As the cubin has it.
    registers
        32-bit registers a thread.
    shared_bytes
        Static shared memory of a block; what is asked for at launch is not in it.
    stack_bytes
        Stack frame of a thread.
    spill_bytes
        Registers that did not fit and are stored to and loaded from memory, both added up.
    tensor_instructions
        Instructions for tensor cores (`tvmfuse.codegen.sass`).
    """

    name: str
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0
    spill_bytes: int = 0
    tensor_instructions: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def parse_usage(log: str) -> tuple[KernelUsage, ...]:
    """Read the log of one compilation; kernels in the order in which they were compiled."""
    found: dict[str, dict[str, int]] = {}
    current = ""
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            current = match[1]
            found[current] = {}
        if not current:
            continue
        if match := _FRAME.search(line):
            found[current]["stack_bytes"] = int(match[1])
            found[current]["spill_bytes"] = int(match[2]) + int(match[3])
        if match := _REGISTERS.search(line):
            found[current]["registers"] = int(match[1])
            shared = _SHARED.search(line)
            found[current]["shared_bytes"] = int(shared[1]) if shared else 0
    return tuple(KernelUsage(name, **figures) for name, figures in found.items())
