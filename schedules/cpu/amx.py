"""Tile instructions of AMX in the place of the loops that `tiles` schedules.

A tile is up to 16 rows of 64 bytes, and there are eight. One instruction multiplies a tile of
activations [rows, words] with one of weights [words, lanes] and adds to one of sums [rows, lanes],
where a word is two halves or four bytes whose products are summed.

TensorIR's own way, intrinsics that match blocks, knows where a block's elements are as regions of
buffers, and a region has no stride: every other pixel of an image, or windows that overlap, are
none. Once buffers are flat an element is a linear function of the loops, and its coefficients are
all that the instructions take. So the schedule says by annotations what its loops are, and the
loops are exchanged here, in front of code generation.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.ir import Var
from tvm.ir.expr import TensorLoad
from tvm.tirx import BufferStore, For, IfThenElse, PrimFunc, SeqStmt, Stmt

ROLE = "tvmfuse.tile"  # loop annotation: what the loop counts
# The loops of a register tile, outermost first; those around its sums; the one over pieces.
GROUPS, ROWS, VECTORS, LANES, WORDS = "groups", "rows", "vectors", "lanes", "words"
SUM, PIECE = "sum", "piece"
TILES = 8
TILE_ROWS = 16
TILE_LANES = 16  # words in a row of a tile
WORD_BYTES = 4
_ROW_BYTES = TILE_LANES * WORD_BYTES
_MULTIPLY = {  # by the type of the activations
    "uint16": "llvm.x86.tdpbf16ps",  # the bits of bfloat16
    "bfloat16": "llvm.x86.tdpbf16ps",
    "uint8": "llvm.x86.tdpbusd",  # with int8
}


def with_tile_instructions(module: tvm.IRModule) -> tvm.IRModule:
    """Exchange the annotated loops of all kernels; a module without any is returned as it is."""
    changed = {}
    for name, func in module.functions_items():
        if isinstance(func, PrimFunc) and _has_tiles(func):
            changed[name] = _exchanged(func)
    if not changed:
        return module
    result = tvm.IRModule(dict(module.functions_items()))
    for name, func in changed.items():
        result.update_func(name, func)
    return result


def _has_tiles(func: PrimFunc) -> bool:
    found = []

    def see(loop: For) -> None:
        if ROLE in loop.annotations:
            found.append(loop)

    tvm_ffi.structural_walk(func.body, [(For, see)])
    return bool(found)


def _exchanged(func: PrimFunc) -> PrimFunc:
    flat = tvm.transform.Sequential(
        [
            s_tir.transform.CanonicalizeLoop(),
            s_tir.transform.LowerInitBlock(),
            s_tir.transform.PlanAndUpdateBufferAllocationLocation(),
            s_tir.transform.ConvertBlocksToOpaque(),
            s_tir.transform.CompactBufferAllocation(),
            s_tir.transform.LowerMatchBuffer(),
            s_tir.transform.StmtSimplify(),
            s_tir.transform.LowerOpaqueBlock(),
            tirx.transform.FlattenBuffer(),
        ]
    )(tvm.IRModule({"main": func}))["main"]
    return flat.with_body(_before_children(flat.body, _configured))


def _before_children(root: Any, change: Callable[[For], Any]) -> Any:
    return tvm_ffi.structural_map(root, [(For, change)], order="pre")


def _configured(loop: For) -> Any:
    """Set up the tiles in each piece, which is one thread's, and give them back behind it."""
    if loop.annotations.get(ROLE) != PIECE:
        return loop
    (nest,) = _products(loop)
    body = _before_children(loop.body, _computed)
    steps = [*nest.shape().configuration(), body, _call("llvm.x86.tilerelease")]
    return _plain(loop, SeqStmt(steps))


def _products(root: Any) -> list[_Nest]:
    """The nests that multiply, of all register tiles below ``root``."""
    found: dict[Any, _Nest] = {}

    def see(loop: For) -> None:
        if loop.annotations.get(ROLE, SUM) not in (SUM, PIECE):
            nest = _nest(loop)
            if nest.multiplies and nest.store not in found:
                found[nest.store] = nest

    tvm_ffi.structural_walk(root, [(For, see)], order="pre")
    return list(found.values())


def _computed(loop: For) -> Any:
    """The instructions of one register tile: zeros, or the whole sum and the stores behind it."""
    role = loop.annotations.get(ROLE)
    if role is None:
        return loop
    if role != SUM:
        nest = _nest(loop)
        if not nest.multiplies:
            return nest.guarded(nest.zeros())
        return SeqStmt([nest.guarded(nest.products()), *nest.stores()])
    (nest,) = _products(loop)
    return SeqStmt([_before_children(_plain(loop), _multiplied), *nest.stores()])


def _multiplied(loop: For) -> Any:
    role = loop.annotations.get(ROLE)
    if role is None:
        return loop
    if role == SUM:
        return _plain(loop)
    nest = _nest(loop)
    return nest.guarded(nest.products())


def _plain(loop: For, body: Any = None) -> For:
    """The loop without its role."""
    kept = {key: value for key, value in loop.annotations.items() if key != ROLE}
    inner = loop.body if body is None else body
    return For(loop.loop_var, loop.min, loop.extent, loop.kind, inner, None, kept)


@dataclass(frozen=True)
class _Shape:
    """Tiles of one kernel.

    Parameters
    ----------
    groups
        Tiles of sums below one another.
    rows
        Rows of a tile of sums.
    lanes
        Lanes of each tile of sums beside one another.
    words
        Words that one instruction sums over.
    """

    groups: int
    rows: int
    lanes: tuple[int, ...]
    words: int

    def sums(self, group: int, column: int) -> int:
        """Number of the tile that holds these sums."""
        return group * len(self.lanes) + column

    def weights(self, column: int) -> int:
        """Number of the tile that holds the weights of a column."""
        return self.groups * len(self.lanes) + column

    @property
    def activations(self) -> int:
        """Number of the tile that holds activations, of one group at a time."""
        return (self.groups + 1) * len(self.lanes)

    def configuration(self) -> list[Stmt]:
        """Statements that set up the tiles; layout of the 64 bytes: Intel SDM, LDTILECFG."""
        if self.activations >= TILES:
            raise ValueError(f"{self} needs more than {TILES} tiles")
        data = bytearray(64)
        data[0] = 1  # palette
        for column, lanes in enumerate(self.lanes):
            places = [(self.sums(g, column), self.rows) for g in range(self.groups)]
            for tile, rows in (*places, (self.weights(column), self.words)):
                data[16 + 2 * tile], data[48 + tile] = lanes * WORD_BYTES, rows
        data[16 + 2 * self.activations] = self.words * WORD_BYTES
        data[48 + self.activations] = self.rows
        words = [int.from_bytes(data[i : i + 4], "little") for i in range(0, 64, 4)]
        memory = tirx.decl_buffer((16,), "int32", name="tiles", scope="local")
        stores = [
            BufferStore(memory, tirx.const(word, "int32"), [tirx.const(i, "int32")])
            for i, word in enumerate(words)
        ]
        return [
            tirx.AllocBuffer(memory),
            *stores,
            _call("llvm.x86.ldtilecfg", tirx.address_of(memory)),
        ]


@dataclass(frozen=True)
class _Nest:
    """Annotated loops, one in the other, around one store.

    Parameters
    ----------
    loops
        Those of each role that were left: loops of one step are gone.
    store
        What they run.
    guards
        Conditions on it: there are tiles of padding alone, where nothing has to be computed.
    """

    loops: dict[str, list[For]]
    store: BufferStore
    guards: tuple[Any, ...]

    @property
    def multiplies(self) -> bool:
        """Whether it adds products to sums, and does not set sums to zero."""
        return bool(_loads(self.store.value))

    def extent(self, role: str) -> int:
        """Steps of all loops of a role."""
        return math.prod(int(loop.extent) for loop in self.loops.get(role, ()))

    def shape(self) -> _Shape:
        """Shape of its tiles."""
        operand, _ = self._operands()
        per_word = WORD_BYTES // _bytes_of(operand)
        lanes, vectors = self.extent(LANES), self.extent(VECTORS)
        widths = [min(TILE_LANES, lanes - first) for first in range(0, lanes, TILE_LANES)]
        words = self.extent(WORDS) // per_word
        shape = _Shape(self.extent(GROUPS), self.extent(ROWS), tuple(widths * vectors), words)
        if shape.rows > TILE_ROWS or shape.words > TILE_LANES:
            raise ValueError(f"{shape} is beyond {TILE_ROWS} rows of {TILE_LANES} words")
        return shape

    def guarded(self, statements: list[Stmt]) -> Stmt:
        """Statements in the place of the loops."""
        inner = _sequence(statements)
        for guard in reversed(self.guards):
            inner = IfThenElse(guard, inner)
        return inner

    def zeros(self) -> list[Stmt]:
        """Set the sums to zero."""
        lanes = self.extent(LANES)
        columns = self.extent(VECTORS) * -(-lanes // TILE_LANES)
        return [_call("llvm.x86.tilezero", _u8(t)) for t in range(self.extent(GROUPS) * columns)]

    def products(self) -> list[Stmt]:
        """Add the products of one step."""
        shape = self.shape()
        x, w = self._operands()
        per_word = WORD_BYTES // _bytes_of(x)
        multiply = _MULTIPLY[str(x.source.ty.dtype)]
        statements = []
        for column, (vector, first) in enumerate(self._columns()):
            at = {VECTORS: vector, LANES: first}
            row = self._stride(w, WORDS, per_word)
            statements.append(self._load(shape.weights(column), w, at, row))
        for group in range(shape.groups):
            row = self._stride(x, ROWS, 1)
            statements.append(self._load(shape.activations, x, {GROUPS: group}, row))
            for column in range(len(shape.lanes)):
                tiles = shape.sums(group, column), shape.activations, shape.weights(column)
                statements.append(_call(multiply, *map(_u8, tiles)))
        return statements

    def stores(self) -> list[Stmt]:
        """Store the sums."""
        shape = self.shape()
        sums = tirx.BufferLoad(self.store.buffer, self.store.indices)
        row = tirx.const(self._stride(sums, ROWS, 1), "int64")
        statements = []
        for group in range(shape.groups):
            for column, (vector, first) in enumerate(self._columns()):
                place = self._address(sums, {GROUPS: group, VECTORS: vector, LANES: first})
                tile = _u8(shape.sums(group, column))
                statements.append(_call("llvm.x86.tilestored64", tile, place, row))
        return statements

    def _columns(self) -> list[tuple[int, int]]:
        """Vector and first lane of each tile beside one another."""
        firsts = range(0, self.extent(LANES), TILE_LANES)
        return [(vector, first) for vector in range(self.extent(VECTORS)) for first in firsts]

    def _operands(self) -> tuple[TensorLoad, TensorLoad]:
        """Loads of an activation and of a weight."""
        loads = [x for x in _loads(self.store.value) if not x.source.same_as(self.store.buffer)]
        if len(loads) != 2 or str(loads[0].source.ty.dtype) not in _MULTIPLY:
            raise ValueError(f"no product of an activation with a weight: {self.store.value}")
        return loads[0], loads[1]

    def _load(self, tile: int, load: TensorLoad, at: dict[str, int], row: int) -> Stmt:
        place = self._address(load, at)
        return _call("llvm.x86.tileloadd64", _u8(tile), place, tirx.const(row, "int64"))

    def _address(self, load: TensorLoad, at: dict[str, int]) -> Any:
        (index,) = load.indices
        return tirx.address_of(tirx.BufferLoad(load.source, [self._at(index, **at)]))

    def _stride(self, load: TensorLoad, role: str, steps: int) -> int:
        """Bytes between neighbours along a role's loops, which step ``steps`` at a time."""
        (index,) = load.indices
        extent = self.extent(role)
        if extent <= steps:
            return _ROW_BYTES  # one row: any distance will do
        places = [self._at(index, **{role: step}) for step in range(0, extent, steps)]
        distances = {int(tvm.sym.Analyzer().simplify(b - a)) for a, b in itertools.pairwise(places)}
        if len(distances) > 1:
            raise ValueError(f"{index} is not linear in the {role} of a tile")
        return distances.pop() * _bytes_of(load)

    def _at(self, index: Any, **steps: int) -> Any:
        """``index`` where the loops of the named roles are at a step, all others at their first."""
        places: dict[Any, Any] = {}
        for role, loops in self.loops.items():
            rest = steps.get(role, 0)
            for loop in reversed(loops):
                extent = int(loop.extent)
                places[loop.loop_var] = tirx.const(rest % extent, str(loop.loop_var.ty.dtype))
                rest //= extent
        moved = tvm_ffi.structural_map(index, [(Var, lambda var: places.get(var, var))])
        return tvm.sym.Analyzer().simplify(moved)


def _nest(loop: For) -> _Nest:
    loops: dict[str, list[For]] = {}
    inner: Any = loop
    while isinstance(inner, For) and ROLE in inner.annotations:
        loops.setdefault(str(inner.annotations[ROLE]), []).append(inner)
        inner = inner.body
    guards = []
    while isinstance(inner, IfThenElse) and inner.else_case is None:
        guards.append(inner.condition)
        inner = inner.then_case
    if not isinstance(inner, BufferStore):
        raise ValueError(f"the loops of a tile run {type(inner).__name__}, not one store")
    own = {step.loop_var for mine in loops.values() for step in mine}
    if own & set(_variables(guards)):
        raise ValueError(f"a part of a tile is left out: {guards}")
    return _Nest(loops, inner, tuple(guards))


def _variables(expressions: list[Any]) -> list[Var]:
    found: list[Var] = []
    for expression in expressions:
        tvm_ffi.structural_walk(expression, [(Var, found.append)])
    return found


def _loads(value: Any) -> list[TensorLoad]:
    found: list[TensorLoad] = []
    tvm_ffi.structural_walk(value, [(TensorLoad, found.append)])
    return found


def _bytes_of(load: TensorLoad) -> int:
    return int(tvm.DataType(str(load.source.ty.dtype)).bits) // 8


def _sequence(statements: list[Stmt]) -> Stmt:
    return statements[0] if len(statements) == 1 else SeqStmt(statements)


def _call(name: str, *arguments: Any) -> Stmt:
    return tirx.Evaluate(tirx.call_llvm_intrin("void", name, *arguments))


def _u8(value: int) -> Any:
    return tirx.const(value, "uint8")
