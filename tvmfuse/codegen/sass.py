"""Which kernels of a cubin use tensor cores: their instructions counted in the machine code.

From compute capability 7.0 on an instruction is 16 bytes whose lowest 12 bits are its opcode. Those
of the matrix units were read off ``nvdisasm -hex`` (CUDA 12.8) for sm_75, sm_80 and sm_90a, where
this count and that of its listing are the same (a test compares them where nvdisasm is installed).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

OLDEST = 70  # compute capability: older instructions are 8 bytes, and there are no tensor cores
_BYTES = 16
_OPCODE = 0xFFF
HMMA = 0x23C  # halves and bfloat16, sums of float32
_TEXT = ".text."


def tensor_instructions(cubin: bytes, cc: int) -> dict[str, int]:
    """HMMA instructions of each kernel.

    Parameters
    ----------
    cubin
        An ELF file of 64 bits.
    cc
        Compute capability, major times ten plus minor.
    """
    found = {}
    for name, code in _sections(cubin):
        if name.startswith(_TEXT):
            words = (struct.unpack_from("<H", code, at)[0] for at in range(0, len(code), _BYTES))
            count = sum(word & _OPCODE == HMMA for word in words) if cc >= OLDEST else 0
            found[name.removeprefix(_TEXT)] = count
    return found


def _sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents: ELF-64, e_shoff at 40, e_shentsize, e_shnum and e_shstrndx at 58."""
    (table,) = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    strings = headers[names][4] if count else 0
    for name, _, _, _, offset, length in headers:
        begin = strings + name
        end = elf.index(b"\0", begin)
        yield elf[begin:end].decode(), elf[offset : offset + length]
