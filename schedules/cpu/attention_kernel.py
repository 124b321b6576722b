"""Attention on CPU as one kernel: scores live in a tile of a few query rows, never in memory.

    for each matrix, each block of query rows (parallel):
        for each block of keys:
            pack the keys transposed, the values as they are
            for each tile of query rows:
                S = steps(q @ k^T)                    a tile of tq rows in L1
                m' = max(m, max(S)); P = exp(S - m')  running maximum and sum, in float32
                l = l · exp(m - m') + sum(P)
                O = O · exp(m - m') + P @ v
        out = O / l

Both products are register tiles as in `contraction`: tq rows times v vectors of accumulators.
Few query rows (decoding) do not pay for packing: scores are then dot products over stored keys,
and values are read where they lie. A score of -inf gives 0, a row of nothing else NaN (or 0 where
the anchor is safe), and NaN goes where softmax would take it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm.tirx import PrimFunc

from tvmfuse.hardware import Hardware
from tvmfuse.schedules import base
from tvmfuse.schedules.anchor import Attention, Step
from tvmfuse.schedules.cpu.attention_frame import Blocking, Frame
from tvmfuse.schedules.cpu.text import i64
from tvmfuse.schedules.cpu.vector_math import write_across, write_exp, write_transpose

FAMILY = "attention"


def attention(a: Attention, b: Blocking, hardware: Hardware) -> PrimFunc:
    """The kernel ``(*inputs, out)`` of ``a`` with the sizes of ``b``, not yet parallel."""
    return _Kernel(a, b, hardware.lanes()).write()


class _Kernel(Frame):
    """Writes one kernel; ``r`` counts query rows, ``key`` keys, ``n`` lanes."""

    def write(self) -> PrimFunc:
        a, w = self.a, self.w
        inputs = [(f"b{i}", *spec) for i, spec in enumerate(a.buffers)]
        with w.kernel([*inputs, ("out", a.out_shape, a.dtype)]):
            extents = [*a.lead, math.ceil(a.SQ / self.rows)]
            loops = [(f"i{n}", extent, "serial") for n, extent in enumerate(extents)]
            with w.loops(*loops), w.under('T.sblock("attention")'):
                axes = [*self.leads, "vq"]
                for name, (loop, extent, _) in zip(axes, loops, strict=True):
                    w.bind(name, f"T.axis.spatial({i64(extent)}, {loop})")
                self._regions()
                self._allocate()
                self._piece()
        return w.function()

    def _regions(self) -> None:
        whole = lambda shape: ", ".join(f"0:{e}" for e in shape)  # noqa: E731
        reads = ", ".join(f"b{i}[{whole(s)}]" for i, (s, _) in enumerate(self.a.buffers))
        self.w.line(f"T.reads([{reads}])")
        self.w.line(f"T.writes([out[{whole(self.a.out_shape)}]])")
        self.w.line(f'T.sblock_attr({{"{base.FAMILY}": "{FAMILY}", "{base.WRITTEN}": 1}})')

    def _allocate(self) -> None:
        a, b, lanes = self.a, self.b, self.lanes
        tile = b.v * lanes
        shared = {  # of one piece, in the caches
            "q": (self.rows, a.D), "m": (self.rows,), "l": (self.rows,),
            # Rows a large power of two apart evict one another: 256 keys ran at half speed.
            "s": (b.tq, b.keys + lanes), "o": (self.rows, self.width),
        }  # fmt: skip
        registers = {"e_x": lanes, "e_n": lanes, "e_p": lanes, "h": lanes, "g": lanes}
        if not b.direct:
            self._buffer("tr", (lanes, lanes), "local")
            self._buffer("tx", (lanes,), "local")
            shared |= {"kt": (b.keys * a.D,), "vp": (b.keys, self.width)}
        self._parts(shared)
        for name, extent in registers.items():
            self._buffer(name, (extent,), "local")
        for name in ("base", "alpha", "top", "x"):
            self._buffer(name, (1,), "local")
        for name in ("sa", "sr", "oa", "or_"):
            self._buffer(name, (b.tq, tile), "local")

    # --- one piece ------------------------------------------------------------------------

    def _piece(self) -> None:
        a, b, w = self.a, self.b, self.w
        scale = math.prod(s.value for s in self._leading_scales())
        factor = "" if scale == 1 else f" * T.float32({scale!r})"
        with w.loops(("r", self.rows, "serial")):
            row = self._row(f"vq * {i64(self.rows)} + r")
            self._vector(
                "d",
                a.D,
                a.q.column == 1,
                lambda d: f"q[r, {d}] = {self._at(a.q, row, a.SQ, d, a.D)}{factor}",
            )
            w.line('m[r] = T.float32("-inf")')
            w.line("l[r] = T.float32(0)")
            self._vector("d", self.width, True, lambda d: f"o[r, {d}] = T.float32(0)")
        with w.loops(("kb", self.blocks, "serial")):
            if not b.direct:
                self._pack()
            with w.loops(("t", b.tiles, "serial")), w.when(self._visible()):
                self._tile()
        self._store()

    def _leading_scales(self) -> list[Step]:
        """Factors in front of every other step, which the packed queries carry."""
        found = []
        for step in self.a.steps:
            if step.kind != "scale":
                break
            found.append(step)
        return found

    def _visible(self) -> str:
        """Whether the last row of tile ``t`` sees the first key of block ``kb``."""
        steps = [s for s in self.a.steps if s.kind != "scale"]
        reach = [
            s.offset
            for s in steps
            if s.kind == "causal" and (s.value == -math.inf or self._negligible(steps, s))
        ]
        later = any(s.kind == "where" and s.value != -math.inf for s in steps)
        if not reach or later or self.blocks == 1:
            return ""
        last = f"vq * {i64(self.rows)} + t * {i64(self.b.tq)} + {i64(self.b.tq - 1 + min(reach))}"
        return f"kb * {i64(self.b.keys)} <= {last}"

    @staticmethod
    def _negligible(steps: list[Step], step: Step) -> bool:
        """Whether a finite minimum weighs nothing: every row sees a key, and nothing else masks."""
        return len(steps) == 1 and step.value <= -1e30 and step.offset >= 0

    def _pack(self) -> None:
        """Keys of the block as panels [tile][D][keys of a tile], values as they are."""
        a, b, w = self.a, self.b, self.w
        for first, count, vectors in self._chunks(b.keys):
            wide = vectors * self.lanes
            with w.loops(("c", count, "serial")):
                begin = f"c * {i64(wide)} + {i64(first)}"
                place = f"({begin}) * {i64(a.D)}"
                if a.k.row == 1 and a.SK % b.keys == 0:
                    with w.loops(("d", a.D, "serial")):
                        self._vector(
                            "n0",
                            wide,
                            True,
                            lambda n, p=place, g=begin, e=wide: (
                                f"kt[{p} + d * {i64(e)} + {n}] = "
                                + self._at(a.k, f"(kb * {i64(b.keys)} + {g} + {n})", a.SK, "d", a.D)
                            ),
                        )
                    continue
                whole = a.D // self.lanes if a.k.column == 1 else 0
                if whole:
                    self._transpose(begin, place, wide, whole)
                left = a.D - whole * self.lanes
                if not left:
                    continue
                with w.loops(("n0", wide, "serial"), ("d0", left, "serial")):
                    key = self._key(f"kb * {i64(b.keys)} + {begin} + n0")
                    d = f"(d0 + {i64(whole * self.lanes)})"
                    value = self._at(a.k, key, a.SK, d, a.D)
                    w.line(f"kt[{place} + {d} * {i64(wide)} + n0] = {value}")
        with w.loops(("j", b.keys, "serial")):
            key = self._key(f"kb * {i64(b.keys)} + j")
            self._vector(
                "d",
                a.DV,
                a.v.column == 1,
                lambda d: f"vp[j, {d}] = {self._at(a.v, key, a.SK, d, a.DV)}",
            )
            if self.width > a.DV:
                with w.loops(("d", self.width - a.DV, "serial")):
                    w.line(f"vp[j, d + {i64(a.DV)}] = T.float32(0)")

    def _transpose(self, begin: str, place: str, wide: int, whole: int) -> None:
        """Panels from squares of ``lanes`` keys by ``lanes`` elements, transposed in registers."""
        a, w, lanes = self.a, self.w, self.lanes
        with w.loops(("n0", wide // lanes, "serial"), ("d0", whole, "serial")):
            first = f"kb * {i64(self.b.keys)} + {begin} + n0 * {i64(lanes)}"
            for i in range(lanes):
                key = self._key(f"{first} + {i64(i)}")
                with w.loops(("n", lanes, "vectorized")):
                    d = f"(d0 * {i64(lanes)} + n)"
                    w.line(f"tr[{i64(i)}, n] = {self._at(a.k, key, a.SK, d, a.D)}")
            write_transpose(w, "tr", lanes)
            for i in range(lanes):
                row = f"(d0 * {i64(lanes)} + {i64(i)}) * {i64(wide)} + n0 * {i64(lanes)}"
                with w.loops(("n", lanes, "vectorized")):
                    w.line(f"kt[{place} + {row} + n] = tr[{i64(i)}, n]")

    def _tile(self) -> None:
        if self.b.direct:
            self._dot_scores()
        else:
            self._scores()
        self._softmax()
        self._weigh()

    def _scores(self) -> None:
        """S = q @ k^T for one tile of rows."""
        a, b, w, lanes = self.a, self.b, self.w, self.lanes
        for first, count, vectors in self._chunks(b.keys):
            wide, acc = vectors * lanes, "sa" if vectors == b.v else "sr"
            with w.loops(("c", count, "serial")):
                tile = [
                    ("i", b.tq, "unroll"), ("j", vectors, "unroll"), ("n", lanes, "vectorized"),
                ]  # fmt: skip
                column = f"j * {i64(lanes)} + n"
                with w.loops(*tile):
                    w.line(f"{acc}[i, {column}] = T.float32(0)")
                place = f"(c * {i64(wide)} + {i64(first)}) * {i64(a.D)}"
                with w.loops(("d", a.D, "serial"), *tile):
                    w.line(
                        f"{acc}[i, {column}] = {acc}[i, {column}] + "
                        f"q[t * {i64(b.tq)} + i, d] * kt[{place} + d * {i64(wide)} + {column}]"
                    )
                with w.loops(*tile):
                    w.line(f"s[i, c * {i64(wide)} + {i64(first)} + {column}] = {acc}[i, {column}]")

    def _dot_scores(self) -> None:
        """S = q @ k^T with keys as they are stored, one dot product each."""
        a, b, w, lanes = self.a, self.b, self.w, self.lanes
        whole = a.D // lanes
        with w.loops(("j", b.keys, "serial")):
            with w.loops(("i", b.tq, "unroll"), ("n", lanes, "vectorized")):
                w.line("sa[i, n] = T.float32(0)")
            key = self._key(f"kb * {i64(b.keys)} + j")
            if whole:
                with w.loops(
                    ("d", whole, "serial"), ("i", b.tq, "unroll"), ("n", lanes, "vectorized")
                ):
                    d = f"d * {i64(lanes)} + n"
                    w.line(f"sa[i, n] = sa[i, n] + q[i, {d}] * {self._at(a.k, key, a.SK, d, a.D)}")
            with w.loops(("i", b.tq, "serial")):
                with w.loops(("n", lanes, "vectorized")):
                    w.line("h[n] = sa[i, n]")
                write_across(w, "{} + {}", "h", "x[0]", lanes)
                if a.D % lanes:
                    with w.loops(("d0", a.D % lanes, "serial")):
                        d = f"(d0 + {i64(whole * lanes)})"
                        w.line(f"x[0] = x[0] + q[i, {d}] * {self._at(a.k, key, a.SK, d, a.D)}")
                w.line("s[i, j] = x[0]")

    # --- softmax --------------------------------------------------------------------------

    def _softmax(self) -> None:
        b, w, lanes = self.b, self.w, self.lanes
        r = f"t * {i64(b.tq)} + i"
        vector = ("n", lanes, "vectorized")
        at = f"s[i, kv * {i64(lanes)} + n]"
        with w.loops(("i", b.tq, "serial")):
            with w.loops(vector):
                w.line('h[n] = T.float32("-inf")')
            with w.loops(("kv", b.keys // lanes, "serial")):
                self._apply_steps()
                with w.loops(vector):
                    w.line(f"h[n] = T.max(h[n], {at})")
            write_across(w, "T.max({}, {})", "h", "x[0]", lanes)
            w.line(f"top[0] = T.max(m[{r}], x[0])")
            # -inf - -inf would be NaN, but the weight is 0
            w.line('base[0] = T.Select(top[0] == T.float32("-inf"), T.float32(0), top[0])')
            if self.blocks > 1:
                w.line(f"x[0] = m[{r}] - base[0]")
                write_exp(w, "alpha[0]", "x[0]", 1)
                w.line(f"m[{r}] = top[0]")
            with w.loops(vector):
                w.line("g[n] = T.float32(0)")
            with w.loops(("kv", b.keys // lanes, "serial")):
                write_exp(w, at, f"({at} - base[0])", lanes)
                with w.loops(vector):
                    w.line(f"g[n] = g[n] + {at}")
            write_across(w, "{} + {}", "g", "x[0]", lanes)
            if self.blocks > 1:
                w.line(f"l[{r}] = l[{r}] * alpha[0] + x[0]")
                self._vector(
                    "d", self.width, True, lambda d: f"o[{r}, {d}] = o[{r}, {d}] * alpha[0]"
                )
            else:
                w.line(f"l[{r}] = x[0]")

    def _apply_steps(self) -> None:
        """Masks and scales on one vector of scores, and -inf behind the last key."""
        a, b, w, lanes = self.a, self.b, self.w, self.lanes
        place = f"s[i, kv * {i64(lanes)} + n]"
        key = f"kb * {i64(b.keys)} + kv * {i64(lanes)} + n"
        steps = a.steps[len(self._leading_scales()) :]
        padded = self.blocks * b.keys > a.SK
        if not padded:
            self._steps(steps, place, key, ("n", lanes, "vectorized"))
            return
        last = f"kb * {i64(b.keys)} + kv * {i64(lanes)} + {i64(lanes)} <= {i64(a.SK)}"
        with w.under(f"T.If({last})"):
            with w.under("T.Then()"):
                self._steps(steps, place, key, ("n", lanes, "vectorized"))
            one = ("n", lanes, "serial")
            with w.under("T.Else()"), w.loops(one), w.under(f"T.If({key} < {i64(a.SK)})"):
                with w.under("T.Then()"):
                    self._steps(steps, place, key, None)
                with w.under("T.Else()"):
                    w.line(f'{place} = T.float32("-inf")')

    def _steps(self, steps: Sequence[Step], place: str, key: str, loop: Any) -> None:
        row = f"vq * {i64(self.rows)} + t * {i64(self.b.tq)} + i"
        if not steps:
            self.w.line("T.evaluate(0)")
        for step in steps:
            value = f"T.float32({_number(step.value)})"
            if step.kind == "scale":
                text = f"{place} * {value}"
            elif step.kind == "causal":
                text = f"T.Select({key} <= {row} + {i64(step.offset)}, {place}, {value})"
            else:
                at = self._at(step.mask, self._row(row), self.a.SQ, f"({key})", self.a.SK)
                text = {
                    "add": f"{place} + {at}",
                    "multiply": f"{place} * {at}",
                    "where": f"T.Select({at}, {place}, {value})",
                    "unless": f"T.Select({at}, {value}, {place})",
                }[step.kind]
            if loop is None:
                self.w.line(f"{place} = {text}")
            else:
                vectors = step.mask is None or step.mask.column in (0, 1)
                kind = "vectorized" if vectors else "serial"
                with self.w.loops((loop[0], loop[1], kind)):
                    self.w.line(f"{place} = {text}")

    # --- values ---------------------------------------------------------------------------

    def _weigh(self) -> None:
        """O += P @ v for one tile of rows."""
        a, b, w, lanes = self.a, self.b, self.w, self.lanes
        keys = a.SK if self.blocks == 1 else b.keys
        for first, count, vectors in self._chunks(self.width):
            wide, acc = vectors * lanes, "oa" if vectors == b.v else "or_"
            with w.loops(("c", count, "serial")):
                tile = [
                    ("i", b.tq, "unroll"), ("j", vectors, "unroll"), ("n", lanes, "vectorized"),
                ]  # fmt: skip
                column = f"j * {i64(lanes)} + n"
                into = f"o[t * {i64(b.tq)} + i, c * {i64(wide)} + {i64(first)} + {column}]"
                value = f"vp[k, c * {i64(wide)} + {i64(first)} + {column}]"
                with w.loops(*tile):
                    w.line(f"{acc}[i, {column}] = {into}")
                with w.loops(("k", keys, "serial")):
                    if b.direct:
                        value = self._value(f"c * {i64(wide)} + {i64(first)} + {column}")
                    with w.loops(*tile):
                        w.line(f"{acc}[i, {column}] = {acc}[i, {column}] + s[i, k] * {value}")
                with w.loops(*tile):
                    w.line(f"{into} = {acc}[i, {column}]")

    def _value(self, column: str) -> str:
        key = self._key(f"kb * {i64(self.b.keys)} + k")
        at = self._at(self.a.v, key, self.a.SK, f"({column})", self.a.DV)
        if self.width == self.a.DV:
            return at
        return f"T.if_then_else({column} < {i64(self.a.DV)}, {at}, T.float32(0))"

    def _store(self) -> None:
        """out = O / l, for the rows that are not padding."""
        a, w = self.a, self.w
        with w.loops(("r", self.rows, "serial")):
            row = f"(vq * {i64(self.rows)} + r)"
            guard = "" if a.SQ % self.rows == 0 else f"{row} < {i64(a.SQ)}"
            w.line("x[0] = T.float32(1) / l[r]")
            if a.safe:
                w.line("x[0] = T.Select(l[r] == T.float32(0), T.float32(0), x[0])")

            def line(d: str) -> str:
                value = f"o[r, {d}] * x[0]"
                if a.dtype != "float32":
                    value = f'T.Cast("{a.dtype}", {value})'
                return f"{self._at(a.out, row, a.SQ, f'({d})', a.DV)} = {value}"

            with w.when(guard):
                self._vector("d", a.DV, a.out.column == 1, line)


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'
