"""Permission to use AMX tile registers: Linux lends them to a process that asks.

The state of the eight tiles is 8 KiB, which the kernel does not keep for processes that never
multiply with them; an instruction without permission ends the process (SIGILL).
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Iterable

TILES = "amx_tile"  # the Linux flag that all kernels with tiles need
# arch_prctl of Linux 5.16 and later, Documentation/arch/x86/xstate.rst.
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XTILEDATA = 158, 0x1023, 18


def request_tiles() -> bool:
    """Ask for the tile registers, for all threads of this process; whether Linux lends them.

    Asking again is harmless.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    answer: int = libc.syscall(
        ctypes.c_long(_ARCH_PRCTL), ctypes.c_long(_ARCH_REQ_XCOMP_PERM), ctypes.c_long(_XTILEDATA)
    )
    return answer == 0


def without_unlent_tiles(flags: Iterable[str]) -> frozenset[str]:
    """The flags of a CPU without those of AMX where its tile registers are not to be had."""
    flags = frozenset(flags)
    if TILES not in flags or request_tiles():
        return flags
    return frozenset(flag for flag in flags if not flag.startswith("amx_"))
