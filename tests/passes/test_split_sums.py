"""Long sums are taken in two steps, short ones stay."""

import numpy as np
import pytest
from tvm import relax

from tvmfuse.passes.split_sums import SplitSums

# shape, axes, number of sums behind the pass
CASES = {
    "image": ((1, 40, 50, 8), [1, 2], 2),
    "short": ((1, 7, 7, 8), [1, 2], 1),
    "sequence": ((2, 1024, 6), [1], 2),
    "prime sequence": ((2, 1009, 6), [1], 1),
    "rows": ((4, 1000), [1], 1),  # a vector of accumulators is enough
    "long rows": ((2, 3, 64, 64), [2, 3], 2),
    "all": ((80, 90), None, 2),
    "axes of one element": ((500, 1, 6), [0, 1], 2),
    "middle and first": ((30, 4, 20, 5), [0, 2], 2),
}


def ops(mod):
    found = [b.value for block in mod["main"].body.blocks for b in block.bindings]
    return [str(v.op.name).removeprefix("relax.") for v in found if isinstance(v, relax.Call)]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("operator", ["sum", "mean"])
@pytest.mark.parametrize("name", CASES)
def test_sums(kit, name, operator, keepdims):
    shape, axes, sums = CASES[name]

    def body(b, x):
        return b.emit(getattr(relax.op, operator)(x, axes, keepdims))

    mod = kit.written(body, (shape, "float32"))
    after = SplitSums()(mod)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    want = getattr(x.astype("float64"), operator)(
        axis=None if axes is None else tuple(axes), keepdims=keepdims
    )
    got = kit.run(after, x)[0]
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * x.size)
    assert ops(after).count("sum") == (sums if sums > 1 or operator == "sum" else 0)


def test_it_keeps_digits(kit):
    """One value everywhere: a serial sum of 40,000 of it loses four digits."""

    def body(b, x):
        return b.emit(relax.op.mean(x, [1, 2]))

    x = np.full((1, 200, 200, 8), 0.7, "float32")

    def error(change):
        mod = change(kit.written(body, ((1, 200, 200, 8), "float32")))
        return np.abs(kit.run(mod, x)[0] / np.float64(x[0, 0, 0, 0]) - 1).max()

    assert error(SplitSums()) < 0.02 * error(lambda mod: mod)


def test_integers_stay(kit):
    def body(b, x):
        return b.emit(relax.op.sum(x, [1, 2]))

    mod = kit.written(body, ((1, 40, 50, 8), "int64"))
    assert ops(SplitSums()(mod)) == ["sum"]
