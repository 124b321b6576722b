"""Convolutions and products by tile registers: halves in tolerance, bytes bit by bit."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import tvm

from tvmfuse.schedules import schedule_by_template, space
from tvmfuse.schedules.anchor import Dense, IntegerConv2d, IntegerDense
from tvmfuse.schedules.cpu.amx import ROLE, with_tile_instructions
from tvmfuse.schedules.cpu.tile_products import Depth, has_tiles, lanes_of, padded_pixels, tiles
from tvmfuse.schedules.variants import variants

# (n, h, w, c, o), then what is odd about it
CONVS = {
    "1x1": ((1, 7, 7, 64, 32), {"k": 1}),
    "1x1 stride": ((1, 8, 8, 32, 32), {"k": 1, "stride": 2}),
    "3x3": ((1, 9, 9, 32, 32), {"pad": 1}),
    "7x7 of a picture": ((1, 23, 23, 3, 32), {"k": 7, "stride": 2, "pad": 3}),
    "prime width": ((1, 5, 37, 32, 32), {"pad": 1}),
    "batch 2": ((2, 6, 5, 4, 8), {"pad": 1}),
    "5 and 17 channels": ((2, 23, 23, 5, 17), {"stride": 2, "pad": 1}),
    "24 and 40 channels": ((1, 6, 6, 24, 40), {"pad": 1}),
    "200 channels": ((1, 3, 3, 200, 16), {"k": 1}),
    "dilation": ((1, 11, 13, 4, 16), {"dilation": (2, 3), "pad": 2}),
    "asymmetric": ((1, 9, 8, 4, 16), {"pad": (0, 1, 2, 3), "stride": (2, 1)}),
    "one pixel": ((1, 1, 1, 40, 24), {"k": 1}),
    "one channel": ((1, 6, 6, 1, 1), {"pad": 1}),
    "stride past the end": ((1, 8, 8, 4, 16), {"k": 1, "stride": 3}),
}
DENSES = {
    "rows": ((), 33, 64, 48),
    "one row": ((), 1, 128, 40),
    "one of each": ((), 1, 1, 1),
    "a tail of a word": ((2,), 5, 37, 16),
    "prime rows": ((), 197, 96, 32),
    "classes": ((), 1, 64, 1000),
}


def _halves(kit, name):
    if name in DENSES:
        return Dense(*DENSES[name], "bfloat16", "float32")
    sizes, extra = CONVS[name]
    return dataclasses.replace(kit.conv(*sizes, **extra), dtype="bfloat16", result="float32")


def _bytes(kit, name, zero):
    if name in DENSES:
        return IntegerDense(*DENSES[name], "uint8", zero=zero)
    sizes, extra = CONVS[name]
    return IntegerConv2d(**{**vars(kit.conv(*sizes, **extra)), "dtype": "uint8"}, zero=zero)


@pytest.fixture
def amx(kit):
    """This machine, with AMX whether it has it or not; running needs it."""
    return kit.machine(features=tuple({*kit.LOCAL.features, "amx_tile", "amx_bf16", "amx_int8"}))


@pytest.fixture
def runs(kit):
    if not {"amx_bf16", "amx_int8"} <= set(kit.LOCAL.features):
        pytest.skip("this CPU lends no tiles")


def _weight(kit, anchor, rng):
    if isinstance(anchor, IntegerConv2d | IntegerDense):
        shape = kit.weight_of(dataclasses.replace(anchor, dtype="float32"), rng).shape
        return rng.integers(-128, 128, shape).astype(np.int8)
    return kit.weight_of(dataclasses.replace(anchor, dtype="float32"), rng).astype(
        ml_dtypes.bfloat16
    )


def _check(kit, anchor, machine, schedules=None, extreme=False):
    rng = np.random.default_rng(0)
    variant = tiles(anchor, machine)
    whole = isinstance(anchor, IntegerConv2d | IntegerDense)
    w = _weight(kit, anchor, rng)
    if extreme:
        x = np.full(variant.input_shape, 255, np.uint8)
        w = np.full_like(w, -128)
    elif whole:
        x = rng.integers(0, 256, variant.input_shape).astype(np.uint8)
    else:
        x = rng.standard_normal(variant.input_shape).astype(ml_dtypes.bfloat16)
    shift = anchor.zero if whole else 0
    want = kit.definition(anchor, x.astype(np.float64) - shift, w.astype(np.float64))
    packed = variant.pack(w)
    assert packed.shape == variant.weight_shape and packed.dtype.name == variant.weight_dtype
    if schedules is None:
        schedule, name = schedule_by_template(variant.prim_func(), machine)
        assert name == "cpu.tiles"
        schedules = [schedule]
    for schedule in schedules:
        dtype = "int32" if whole else "float32"
        got = kit.run(schedule.mod["main"], [x, packed], want.shape, dtype)
        if whole:
            np.testing.assert_array_equal(got, want)
        else:
            kit.assert_close(got, want, variant.rtol)


@pytest.mark.parametrize("name", [*CONVS, *DENSES])
def test_halves(kit, amx, runs, name):
    _check(kit, _halves(kit, name), amx)


@pytest.mark.parametrize("zero", [0, 131])
@pytest.mark.parametrize("name", [*CONVS, *DENSES])
def test_bytes(kit, amx, runs, name, zero):
    _check(kit, _bytes(kit, name, zero), amx)


@pytest.mark.parametrize("zero", [0, 255])
@pytest.mark.parametrize("name", ["3x3", "rows", "24 and 40 channels"])
def test_largest_numbers_do_not_saturate(kit, amx, runs, name, zero):
    _check(kit, _bytes(kit, name, zero), amx, extreme=True)


@pytest.mark.parametrize("name", ["3x3", "5 and 17 channels", "rows"])
def test_every_structure_of_the_space_is_right(kit, amx, runs, name):
    for anchor in (_halves(kit, name), _bytes(kit, name, 3)):
        func = tiles(anchor, amx).prim_func()
        found = space(func, amx)
        assert len(found) > 1
        again = [kit.resampled(func, s, seed=n) for n, s in enumerate(found, start=1)]
        assert all(kit.categoricals(a) for a in again)
        _check(kit, anchor, amx, [*found, *again])


def test_nan_and_infinity_stay_in_their_windows(kit, amx, runs):
    anchor = _halves(kit, "24 and 40 channels")
    variant = tiles(anchor, amx)
    assert variant.exact
    x = np.ones(variant.input_shape, ml_dtypes.bfloat16)
    x[0, 0, 0, 0], x[0, 5, 5, 3] = np.nan, np.inf
    w = np.ones((anchor.O, 3, 3, anchor.C), ml_dtypes.bfloat16)
    scheduled = schedule_by_template(variant.prim_func(), amx)[0].mod["main"]
    got = kit.run(scheduled, [x, variant.pack(w)], (1, 6, 6, anchor.O))
    assert np.isnan(got[0, :2, :2]).all() and np.isinf(got[0, 4:, 4:]).all()
    assert np.isfinite(got).sum() == got.size - 8 * anchor.O


def test_a_run_with_neighbours_behind_it_is_not_exact(kit, amx):
    assert not tiles(_halves(kit, "7x7 of a picture"), amx).exact  # 21 halves in 22
    assert tiles(_halves(kit, "3x3"), amx).exact
    assert tiles(_bytes(kit, "7x7 of a picture", 3), amx).exact  # integers have no NaN


def _texts(module):
    return with_tile_instructions(module)["main"].script()


@pytest.mark.parametrize(
    ("halves", "instruction"), [(True, "llvm.x86.tdpbf16ps"), (False, "llvm.x86.tdpbusd")]
)
def test_loops_become_instructions(kit, amx, halves, instruction):
    anchor = _halves(kit, "3x3") if halves else _bytes(kit, "3x3", 0)
    schedule, name = schedule_by_template(tiles(anchor, amx).prim_func(), amx)
    assert name == "cpu.tiles"
    text = _texts(schedule.mod)
    assert instruction in text and ROLE not in text
    for name in ("ldtilecfg", "tilezero", "tileloadd64", "tilestored64", "tilerelease"):
        assert f"llvm.x86.{name}" in text


def test_a_module_without_tiles_is_left_alone(kit):
    variant = variants(kit.conv(1, 5, 5, 8, 8), kit.AVX2)[0]
    module = tvm.IRModule({"main": variant.prim_func()})
    assert with_tile_instructions(module).same_as(module)


def test_tiles_are_the_favourite_where_the_cpu_has_them(kit, amx):
    names = [v.name for v in variants(_halves(kit, "3x3"), amx)]
    assert names[0] == "tiles" and "direct" in names
    assert [v.name for v in variants(_bytes(kit, "3x3", 0), amx)] == ["tiles", "dot4"]
    without = kit.machine(features=tuple(f for f in amx.features if f != "amx_bf16"))
    assert not has_tiles(_halves(kit, "3x3"), without)
    assert has_tiles(_bytes(kit, "3x3", 0), without)


def test_groups_and_float32_take_no_tiles(kit, amx):
    grouped = dataclasses.replace(_halves(kit, "3x3"), groups=2)
    assert not has_tiles(grouped, amx)
    assert not has_tiles(kit.conv(1, 5, 5, 8, 8), amx)


@pytest.mark.parametrize(
    ("values", "per_word", "steps", "step"),
    [(64, 2, 2, 32), (40, 2, 2, 20), (21, 2, 1, 22), (200, 2, 7, 32), (3, 4, 1, 4), (64, 4, 1, 64)],
)
def test_depth_fills_whole_tiles(values, per_word, steps, step):
    depth = Depth(values, per_word)
    assert (depth.steps, depth.step, depth.padded) == (steps, step, steps * step)
    assert depth.padded >= values


@pytest.mark.parametrize(
    ("channels", "lanes"), [(64, 16), (24, 24), (40, 40), (255, 15), (1000, 40), (1, 1), (17, 17)]
)
def test_lanes_divide_the_channels(channels, lanes):
    assert lanes_of(channels) == lanes


@pytest.mark.parametrize(
    ("rows", "columns", "padded"), [(56, 56, (56, 56)), (7, 7, (8, 7)), (1, 1, (1, 1))]
)
def test_pixels_are_padded_to_pairs_of_tiles(rows, columns, padded):
    assert padded_pixels(rows, columns, more_rows=True) == padded
