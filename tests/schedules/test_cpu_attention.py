"""Attention kernels against float64, on shapes that fill no tile; NaN, masks, half types."""

import math
import re

import numpy as np
import pytest
from tvm import te

from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.schedules.anchor import Attention, Step, View, from_text, to_text
from tvmfuse.schedules.cpu.attention import attention_variants, blockings
from tvmfuse.schedules.cpu.attention_kernel import attention

INF = math.inf


def matrices(number, heads, rows, columns):
    """[H, rows, columns], stored row by row."""
    return View(number, 0, (rows * columns,), columns, 1)


def anchor(h, sq, sk, d, dv, steps=(), masks=(), safe=False, dtype="float32"):
    """Heads of plain matrices; ``masks`` are shapes and types of further inputs."""
    shapes = (h, sq, d), (h, sk, d), (h, sk, dv)
    views = [matrices(i, *s) for i, s in enumerate(shapes)]
    return Attention(
        (h,), sq, sk, d, dv, *views, matrices(-1, h, sq, dv), steps, safe,
        (*((s, dtype) for s in shapes), *masks), (h, sq, dv), dtype,
    )  # fmt: skip


def data(a, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype("float32") for shape, _ in a.buffers[:3]]


def weights(scores, safe=False):
    """Softmax by its definition; NaN where a row has no finite score."""
    with np.errstate(invalid="ignore"):
        e = np.exp(scores - scores.max(-1, keepdims=True))
        found = e / e.sum(-1, keepdims=True)
    return np.where(np.all(scores == -INF, -1, keepdims=True), 0.0, found) if safe else found


def definition(q, k, v, change=lambda s: s, safe=False):
    q, k, v = (t.astype("float64") for t in (q, k, v))
    with np.errstate(invalid="ignore"):
        return weights(change(q @ k.swapaxes(-1, -2)), safe) @ v


def _two(found):
    """The first and the last: they differ in both sizes."""
    return found[:1] + found[1:][-1:]


def compute(kit, a, blocking, inputs, hardware=None):
    hardware = hardware or kit.AVX512
    schedule, name = schedule_by_template(attention(a, blocking, hardware), hardware)
    assert name == "cpu.attention"
    kit.assert_not_naive(schedule)
    return kit.run(schedule.mod["main"], inputs, a.out_shape, a.dtype)


SHAPES = [  # heads, queries, keys, width of keys and of values
    (2, 8, 8, 16, 16), (3, 17, 17, 8, 8), (2, 49, 49, 32, 32), (1, 197, 197, 64, 64),
    (2, 7, 300, 80, 40), (1, 1, 300, 64, 64), (2, 3, 37, 20, 24), (1, 1, 1, 1, 1),
    (1, 5, 33, 7, 72),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_awkward_shapes(kit, shape):
    a = anchor(*shape, steps=(Step("scale", 0.25),))
    inputs = data(a)
    want = definition(*inputs, lambda s: s * 0.25)
    for blocking in _two(blockings(a, kit.AVX512)):
        kit.assert_close(compute(kit, a, blocking, inputs), want, 2e-5)


@pytest.mark.parametrize("shape", [(2, 17, 33, 20, 12), (1, 2, 37, 20, 24)], ids=str)
def test_small_vectors(kit, shape):
    a = anchor(*shape)
    inputs = data(a)
    got = compute(kit, a, blockings(a, kit.AVX2)[0], inputs, kit.AVX2)
    kit.assert_close(got, definition(*inputs), 2e-5)


def test_all_steps_at_once(kit):
    h, sq, sk = 2, 9, 150  # two blocks of keys
    table = ((h, sq, sk), "float32"), ((h, 1, sk), "bool"), ((h, sq, 1), "float32")
    views = View(3, 0, (sq * sk,), sk, 1), View(4, 0, (sk,), 0, 1), View(5, 0, (sq,), 1, 0)
    steps = (
        Step("scale", 0.5), Step("add", mask=views[0]), Step("where", -1e9, mask=views[1]),
        Step("multiply", mask=views[2]), Step("causal", -INF, offset=100),
    )  # fmt: skip
    a = anchor(h, sq, sk, 12, 12, steps, table)
    rng = np.random.default_rng(1)
    bias, keep = rng.standard_normal((h, sq, sk)).astype("f4"), rng.random((h, 1, sk)) > 0.4
    factor = rng.random((h, sq, 1)).astype("f4")

    def change(s):
        s = np.where(keep, s * 0.5 + bias, -1e9) * factor
        return np.where(np.tri(sq, sk, 100, dtype=bool), s, -INF)

    inputs = [*data(a), bias, keep, factor]
    want = definition(*inputs[:3], change)
    for blocking in _two(blockings(a, kit.AVX512)):
        kit.assert_close(compute(kit, a, blocking, inputs), want, 2e-5)


@pytest.mark.parametrize("safe", [False, True])
def test_rows_without_a_key(kit, safe):
    h, sq, sk = 1, 6, 300
    views = View(3, 0, (0,), sk, 1)
    a = anchor(h, sq, sk, 16, 16, (Step("unless", -INF, mask=views),), (((sq, sk), "bool"),), safe)
    hidden = np.random.default_rng(0).random((sq, sk)) > 0.5
    hidden[2], hidden[4, :256] = True, True  # nothing at all; nothing in the first blocks
    inputs = [*data(a), hidden]
    want = definition(*inputs[:3], lambda s: np.where(hidden, -INF, s), safe)
    for blocking in _two(blockings(a, kit.AVX512)):
        got = compute(kit, a, blocking, inputs)
        assert np.array_equal(np.isnan(got), np.isnan(want))
        assert np.isnan(got[0, 2]).all() if not safe else not got[0, 2].any()
        kit.assert_close(np.nan_to_num(got), np.nan_to_num(want), 2e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("operand", [0, 1])
def test_nan_and_infinity_go_where_the_softmax_takes_them(kit, operand, poison):
    a = anchor(2, 9, 21, 16, 16)
    inputs = data(a)
    inputs[operand][1, 3, 5] = poison
    got = compute(kit, a, blockings(a, kit.AVX512)[0], inputs)
    want = definition(*inputs)
    assert np.isnan(want).any()
    assert np.array_equal(np.isnan(got), np.isnan(want))


def test_scores_far_apart_between_blocks(kit):
    a = anchor(1, 6, 400, 16, 16)
    q, k, v = data(a)
    k[:, 200:] *= 40  # the running maximum rises by far more than exp can hold
    for blocking in _two(blockings(a, kit.AVX512)):
        got = compute(kit, a, blocking, [q * 40, k, v])
        kit.assert_close(got, definition(q * 40, k, v), 2e-5)


def test_sums_of_half_types_are_float32(kit):
    a = anchor(1, 4, 2000, 8, 8, dtype="float16")  # 2000 equal weights: a float16 sum stops short
    q, k, v = (t.astype("float16") for t in data(a))
    q[:] = 0
    got = compute(kit, a, blockings(a, kit.AVX512)[0], [q, k, v])
    assert got.dtype == np.float16
    kit.assert_close(got, definition(q, k, v), 1e-3)


def test_operands_read_through_strides(kit):
    """q, k and v are parts of one [B, S, 3, H, D]; the result is written as [B, S, H, D]."""
    b, s, h, d = 2, 11, 3, 16
    row = 3 * h * d
    parts = [View(0, i * h * d, (s * row, d), row, 1) for i in range(3)]
    out = View(-1, 0, (s * h * d, d), h * d, 1)
    spec = (((b, s, 3, h, d), "float32"),)
    a = Attention((b, h), s, s, d, d, *parts, out, (), False, spec, (b, s, h, d), "float32")
    assert from_text(to_text(a)) == a
    qkv = np.random.default_rng(0).standard_normal((b, s, 3, h, d)).astype("f4")
    q, k, v = (qkv[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    got = compute(kit, a, blockings(a, kit.AVX512)[0], [qkv])
    kit.assert_close(got, definition(q, k, v).transpose(0, 2, 1, 3), 2e-5)


def test_the_score_matrix_is_never_stored(kit):
    a = anchor(2, 300, 400, 16, 16)
    allocation = re.compile(r"sblock_alloc_buffer\(\((.*?)\)[,)]")
    for variant in attention_variants(a, kit.AVX512):
        found = allocation.findall(variant.prim_func().script().replace("T.int64(", "").replace(
            "),", ","))  # fmt: skip
        elements = [math.prod(int(e) for e in re.findall(r"\d+", f)) for f in found]
        assert len(elements) > 3 and max(elements) < 300 * 400 / 2


def test_the_space_is_the_variants(kit):
    a = anchor(2, 40, 40, 16, 16)
    found = attention_variants(a, kit.AVX512)
    assert len({v.name for v in found}) == len(found) > 1
    assert [v.cycles for v in found] == sorted(v.cycles for v in found)
    schedules = space(found[0].prim_func(), kit.AVX512)
    assert len(schedules) == 1 and not kit.categoricals(schedules[0])


def test_other_kernels_are_not_taken(kit):
    x = te.placeholder((4, 16), name="x")
    y = te.compute((4, 16), lambda i, j: x[i, j] * 2, name="y")
    func = te.create_prim_func([x, y], index_dtype_override="int64")
    assert schedule_by_template(func, kit.AVX512)[1] == "cpu.injective"
