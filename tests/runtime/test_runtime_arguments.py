"""What a call accepts, with or without a copy, and what it refuses."""

import numpy as np
import pytest

from tvmfuse.errors import InputError
from tvmfuse.runtime import load, save_artifact
from tvmfuse.runtime.weights import aligned_bytes
from tvmfuse.signature import TensorSpec


def _aligned(array):
    out = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    out[:] = array
    return out


def _misaligned(array):
    out = aligned_bytes(array.nbytes + 4)[4:].view(array.dtype).reshape(array.shape)
    out[:] = array
    assert out.ctypes.data % 64 == 4
    return out


def _read_only(array):
    array = _aligned(array)
    array.flags.writeable = False
    return array


def _strided(array):
    wide = np.zeros((array.shape[0], 2 * array.shape[1]), array.dtype)
    wide[:, ::2] = array
    return wide[:, ::2]


class _Foreign:
    """A DLPack exporter that is neither NumPy nor torch."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


FORMS = [_aligned, _misaligned, _read_only, _strided, np.asfortranarray]


@pytest.mark.parametrize("form", FORMS)
def test_numpy_forms(tiny, artifact, x, form):
    y = load(artifact)(form(x))["y"]
    assert isinstance(y, np.ndarray)
    np.testing.assert_allclose(y, tiny.expected(x, tiny.random_weights()), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("form", [_aligned, _misaligned, _strided])
def test_foreign_forms(tiny, artifact, x, form):
    y = load(artifact)(_Foreign(form(x)))["y"]
    np.testing.assert_allclose(y, tiny.expected(x, tiny.random_weights()), rtol=1e-5, atol=1e-4)


def test_gradients_are_refused(artifact, x):
    torch = pytest.importorskip("torch")
    with pytest.raises(InputError, match=r"requires gradients.*no_grad"):
        load(artifact)(torch.from_numpy(x).requires_grad_())


@pytest.mark.parametrize("form", ["plain", "strided", "misaligned", "gradient"])
def test_torch_forms(tiny, artifact, x, form):
    torch = pytest.importorskip("torch")
    value = torch.from_numpy(_aligned(x))
    if form == "strided":
        value = value.T.contiguous().T
    if form == "misaligned":
        value = torch.from_numpy(_misaligned(x))
    if form == "gradient":
        value = value.requires_grad_()
    with torch.no_grad():
        y = load(artifact)(value)["y"]
    assert isinstance(y, torch.Tensor)
    want = tiny.expected(x, tiny.random_weights())
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-5, atol=1e-4)


def test_aligned_input_is_not_copied(artifact, x):
    model = load(artifact)
    for array in (_aligned(x), _read_only(x)):
        (tensor,), _ = model._marshal.tensors((array,))
        assert tensor.data_ptr() == array.ctypes.data
    (tensor,), _ = model._marshal.tensors((_misaligned(x),))
    assert tensor.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.astype(np.float64), r"float64\[2, 32\]; convert it to float32"),
        (lambda x: x[:1], r"float32\[1, 32\]$"),
        (lambda x: x.tolist(), "a list; pass a NumPy array"),
        (lambda x: None, "a NoneType"),
        (lambda x: np.ma.masked_array(x, x > 0), "masked array"),
        (lambda x: x.astype(">f4"), "foreign byte order"),
        (lambda x: _Foreign(x.astype(np.int32)), "int32"),
        (lambda x: _Foreign(x[:1]), r"float32\[1, 32\]"),
    ],
)
def test_refused_values(artifact, x, change, said):
    with pytest.raises(InputError, match=rf"argument 'x': expected float32\[2, 32\], got .*{said}"):
        load(artifact)(change(x))


def test_refused_torch_values(artifact, x):
    torch = pytest.importorskip("torch")
    model = load(artifact)
    with pytest.raises(InputError, match=r"argument 'x': expected float32.* got float16"):
        model(torch.from_numpy(x).half())
    with pytest.raises(InputError, match="a tensor on meta"):
        model(torch.empty(2, 32, device="meta"))


@pytest.mark.parametrize("count", [0, 2])
def test_refused_counts(artifact, x, count):
    with pytest.raises(InputError, match=rf"got a tuple of {count}.*x: float32"):
        load(artifact)(*[x] * count)


def test_nested_inputs_and_constants(tiny, tmp_path, library, x):
    base = tiny.describe()
    tree = {"tuple": [{"dict": {"a": {"list": [{"tensor": 0}]}}}, {"const": True}]}
    signature = type(base.signature)(
        base.signature.inputs, base.signature.outputs, tree, base.signature.output_tree
    )
    save_artifact(
        tmp_path / "nested",
        library=library,
        weights=tiny.random_weights(),
        manifest=tiny.describe(signature=signature),
        runtime_library=tiny.runtime_library(),
    )
    model = load(tmp_path / "nested")
    want = tiny.expected(x, tiny.random_weights())
    np.testing.assert_allclose(model({"a": [x]}, True)["y"], want, rtol=1e-5, atol=1e-4)
    with pytest.raises(InputError, match=r"\[1\]: the model was compiled for True, got False"):
        model({"a": [x]}, False)
    with pytest.raises(InputError, match=r"dict with the keys \['b'\]"):
        model({"b": [x]}, True)


def test_bfloat16(tiny, tmp_path, x):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    tiny.build_library(tmp_path / "bf16.so", dtype="bfloat16")
    weights = {k: w.astype(ml_dtypes.bfloat16) for k, w in tiny.random_weights().items()}
    save_artifact(
        tmp_path / "bf16",
        library=tmp_path / "bf16.so",
        weights=weights,
        manifest=tiny.describe(dtype="bfloat16"),
        runtime_library=tiny.runtime_library(),
    )
    model = load(tmp_path / "bf16")
    half = x.astype(ml_dtypes.bfloat16)
    wide = {k: w.astype(np.float32) for k, w in weights.items()}
    want = tiny.expected(half.astype(np.float32), wide)
    got = model(half)["y"]
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(got.astype(np.float32), want, rtol=0.05, atol=2)
    from_torch = model(torch.from_numpy(x).bfloat16())["y"]
    assert from_torch.dtype == torch.bfloat16
    np.testing.assert_array_equal(from_torch.float().numpy(), got.astype(np.float32))
    with pytest.raises(InputError, match=r"expected bfloat16.* got float32"):
        model(x)


def test_specs_print_like_the_messages():
    assert str(TensorSpec("x", (2, 3), "float32")) == "x: float32[2, 3]"
