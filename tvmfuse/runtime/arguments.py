"""Arguments in, results out: checked, aligned, and without copies where that is possible."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfuse.errors import ArtifactError, InputError
from tvmfuse.runtime.weights import ALIGNMENT_BYTES, aligned_bytes
from tvmfuse.signature import IndexBound, Signature, TensorSpec, flatten, parts_of, unflatten

_BITS = "uint16"  # NumPy's carrier of bfloat16, which DLPack does not know from NumPy


def retyper(ffi: Any) -> Callable[[Any, str], Any]:
    """Return a function that views a tensor's memory as another dtype of the same width."""
    view = ffi.get_global_func("runtime.TVMTensorCreateView")

    def retype(tensor: Any, dtype: str) -> Any:
        return view(tensor, ffi.Shape(tuple(tensor.shape)), ffi.dtype(dtype), 0)

    return retype


class Marshal:
    """Turns the arguments of one model into TVM tensors and its results back.

    Not re-entrant: arrays that TVM cannot take as they are go through one buffer a parameter.
    """

    def __init__(self, ffi: Any, signature: Signature) -> None:
        self._signature = signature
        self._ffi = ffi
        self.retype = retyper(ffi)
        self._inputs = [_Input(ffi, self.retype, spec) for spec in signature.inputs]
        self._bfloat16_out = [spec.dtype == "bfloat16" for spec in signature.outputs]

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments of a call by position; raises InputError where they do not fit."""
        try:
            return self._signature.bind(args, kwargs)
        except ValueError as error:
            raise self._wrong(error) from None

    def _wrong(self, error: ValueError) -> InputError:
        given = ", ".join(str(spec) for spec in self._signature.inputs)
        return InputError(f"wrong arguments: {error}; the signature is ({given})")

    def tensors(self, args: tuple[Any, ...]) -> tuple[list[Any], Any]:
        """Return the flat TVM tensors of a call, and the torch module if torch tensors came.

        Raises
        ------
        InputError
            The arguments do not fit the signature; names the parameter.
        """
        try:
            leaves = flatten(self._signature.input_tree, args)
        except ValueError as error:
            raise self._wrong(error) from None
        _check_constants(self._signature, args)
        torch = sys.modules.get("torch")
        seen = None
        flat = []
        for slot, value in zip(self._inputs, leaves, strict=True):
            if isinstance(value, np.ndarray):
                tensor = slot.from_numpy(value)
            elif torch is not None and isinstance(value, torch.Tensor):
                seen = torch
                tensor = slot.from_torch(value)
            else:
                tensor = slot.from_dlpack(value)
            # Kernels expect the strides that a product of extents gives; of a tensor without
            # elements, PyTorch and NumPy say others.
            flat.append(tensor if slot.size else self.retype(tensor, str(tensor.dtype)))
        return flat, seen

    def check(self, tensors: list[Any], bounds: tuple[IndexBound, ...]) -> None:
        """Raise InputError where a flat input holds an index outside of what it is read by."""
        for bound in bounds:
            array = np.from_dlpack(tensors[bound.position])
            if array.size and (array.min() < bound.low or array.max() >= bound.high):
                wrong = (array < bound.low) | (array >= bound.high)
                at = tuple(int(place) for place in np.argwhere(wrong)[0])
                raise InputError(
                    f"argument {self._signature.inputs[bound.position].name!r}: the index "
                    f"{array[at]} at {list(at)} is not in {bound.low} .. {bound.high - 1}, which "
                    f"{bound.reader} takes"
                )

    def results(self, outputs: Any, borrowed: list[tuple[int, int]], torch: Any) -> Any:
        """Return the VM's outputs in the user's structure.

        Parameters
        ----------
        outputs
            The flat sequence of TVM tensors.
        borrowed
            Address ranges that are not the caller's to keep (weights, inputs); results inside
            them are copied.
        torch
            The torch module, or None for NumPy arrays.
        """
        if len(outputs) != len(self._bfloat16_out):
            raise ArtifactError(
                f"the library returned {len(outputs)} tensors, the manifest promises "
                f"{len(self._bfloat16_out)}; rebuild the artifact"
            )
        leaves = []
        for tensor, bfloat16 in zip(outputs, self._bfloat16_out, strict=True):
            address = tensor.data_ptr()
            shared = any(low <= address < high for low, high in borrowed)
            if torch is not None:
                leaf = torch.from_dlpack(tensor)
                leaves.append(leaf.clone() if shared else leaf)
                continue
            leaf = np.from_dlpack(self.retype(tensor, _BITS) if bfloat16 else tensor)
            leaf = leaf.copy() if shared else leaf
            leaves.append(leaf.view(bfloat16_dtype()) if bfloat16 else leaf)
        return unflatten(self._signature.output_tree, leaves)

    def array(self, tensor: Any) -> np.ndarray:
        """A TVM tensor as a NumPy array of its own."""
        if str(tensor.dtype) == "bfloat16":
            return np.from_dlpack(self.retype(tensor, _BITS)).copy().view(bfloat16_dtype())
        return np.from_dlpack(tensor).copy()

    def copy(self, tensor: Any) -> Any:
        """A TVM tensor with memory of its own, aligned as kernels expect it."""
        narrow = str(tensor.dtype) == "bfloat16"
        source = np.from_dlpack(self.retype(tensor, _BITS) if narrow else tensor)
        array = aligned_bytes(source.nbytes).view(source.dtype).reshape(source.shape)
        np.copyto(array, source)
        copied = self._ffi.from_dlpack(array)
        return self.retype(copied, "bfloat16") if narrow else copied


class _Input:
    """One parameter: its spec, and a buffer for arrays that need a copy."""

    def __init__(self, ffi: Any, retype: Any, spec: TensorSpec) -> None:
        self._ffi, self._retype, self._spec = ffi, retype, spec
        self.size = math.prod(spec.shape)
        self._bfloat16 = spec.dtype == "bfloat16"
        self._dtype = np.dtype(_BITS if self._bfloat16 else spec.dtype)
        self._buffer: np.ndarray | None = None
        self._staged: Any = None

    def from_numpy(self, array: np.ndarray) -> Any:
        if type(array) is not np.ndarray and isinstance(array, np.ma.MaskedArray):
            raise self._refusal("a masked array, whose mask would be lost", "use .filled(value)")
        dtype = array.dtype.name if self._bfloat16 else array.dtype
        if dtype != (self._spec.dtype if self._bfloat16 else self._dtype):
            self._refuse_dtype(array.dtype.newbyteorder("=").name, array.shape, array.dtype.str)
        if array.shape != self._spec.shape:
            raise self._refusal(_describe(array.dtype, array.shape))
        if self._bfloat16:
            array = array.view(_BITS)
        if not array.flags.c_contiguous:
            return self._copy(array)
        try:
            if array.flags.writeable:
                tensor = self._ffi.from_dlpack(array)
            else:  # only the versioned protocol can say "read-only"; NumPy 1 cannot speak it
                tensor = self._ffi.from_dlpack(array.__dlpack__(max_version=(1, 0)))
        except (BufferError, TypeError):
            return self._copy(array)
        if tensor.data_ptr() % ALIGNMENT_BYTES:
            return self._copy(array)
        return self._retype(tensor, "bfloat16") if self._bfloat16 else tensor

    def from_torch(self, value: Any) -> Any:
        if value.device.type != "cpu":
            raise self._refusal(f"a tensor on {value.device}", "use .cpu()")
        if value.requires_grad:
            if sys.modules["torch"].is_grad_enabled():
                raise self._refusal(
                    "a tensor that requires gradients, which a compiled model does not compute",
                    "call it under torch.no_grad(), or pass .detach()",
                )
            value = value.detach()
        tensor = self._import(value)
        if not value.is_contiguous() or tensor.data_ptr() % ALIGNMENT_BYTES:
            torch = sys.modules["torch"]
            tensor = self._import(value.clone(memory_format=torch.contiguous_format))
        return tensor

    def from_dlpack(self, value: Any) -> Any:
        if not hasattr(value, "__dlpack__"):
            raise self._refusal(f"a {type(value).__name__}", "pass a NumPy array or a torch tensor")
        tensor = self._import(value)
        if tensor.device.type != "cpu":
            raise self._refusal(f"a tensor on {tensor.device}", "copy it to the CPU")
        if not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT_BYTES:
            plain = self._retype(tensor, _BITS) if self._bfloat16 else tensor
            return self._copy(np.from_dlpack(plain))
        return tensor

    def _import(self, value: Any) -> Any:
        """Wrap a foreign tensor and check it against the spec."""
        try:
            tensor = self._ffi.from_dlpack(value)
        except Exception as error:
            raise self._refusal(f"a {type(value).__name__} that DLPack refuses: {error}") from error
        if str(tensor.dtype) != self._spec.dtype:
            self._refuse_dtype(str(tensor.dtype), tuple(tensor.shape))
        if tuple(tensor.shape) != self._spec.shape:
            raise self._refusal(_describe(tensor.dtype, tensor.shape))
        return tensor

    def _copy(self, array: np.ndarray) -> Any:
        if self._buffer is None:
            size = int(np.prod(self._spec.shape, dtype=np.int64)) * self._dtype.itemsize
            self._buffer = aligned_bytes(size).view(self._dtype).reshape(self._spec.shape)
            staged = self._ffi.from_dlpack(self._buffer)
            self._staged = self._retype(staged, "bfloat16") if self._bfloat16 else staged
        np.copyto(self._buffer, array)
        return self._staged

    def _refuse_dtype(self, dtype: str, shape: tuple[int, ...], order: str = "") -> None:
        if dtype == self._spec.dtype:
            raise self._refusal(
                f"{_describe(dtype, shape)} in foreign byte order ({order})",
                f"use .astype({dtype!r})",
            )
        raise self._refusal(_describe(dtype, shape), f"convert it to {self._spec.dtype} first")

    def _refusal(self, given: str, remedy: str = "") -> InputError:
        expected = _describe(self._spec.dtype, self._spec.shape)
        said = f"argument {self._spec.name!r}: expected {expected}, got {given}"
        return InputError(said + (f"; {remedy}" if remedy else ""))


def _describe(dtype: Any, shape: Any) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _check_constants(signature: Signature, args: tuple[Any, ...]) -> None:
    """Compare the arguments that were fixed when the model was compiled."""
    names = dict(enumerate(map(repr, signature.parameters)))
    for position, tree, value in parts_of(signature.input_tree, args):
        _check_constant(tree, value, names.get(position, f"[{position}]"))


def _check_constant(tree: dict[str, Any], value: Any, where: str) -> None:
    if "const" in tree:
        constant = tree["const"]
        if type(value) is not type(constant) or value != constant:
            raise InputError(
                f"argument {where}: the model was compiled for {constant!r}, got {value!r}; "
                "pass the same value, or compile again for the new one"
            )
    for key, sub, part in parts_of(tree, value):
        _check_constant(sub, part, f"{where}[{key!r}]")


def bfloat16_dtype() -> np.dtype:
    """NumPy's bfloat16; raises ArtifactError where the package that defines it is missing."""
    try:
        import ml_dtypes
    except ImportError as error:
        raise ArtifactError(
            "bfloat16 results as NumPy arrays need the package ml_dtypes: pip install ml_dtypes, "
            "or pass torch tensors"
        ) from error
    return np.dtype(ml_dtypes.bfloat16)
