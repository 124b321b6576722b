"""Which tensors PT2E observes, and with what: this module needs torchao.

Observed are the inputs of convolutions and products with constant weights, residuals and
concatenations between them, and what a mean over the image reads: every edge between two integer
kernels. A convolution's own result is not observed in front of a residual addition, since one
kernel computes both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torchao.quantization.pt2e import MinMaxObserver, PerChannelMinMaxObserver
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    SharedQuantizationSpec,
)
from torchao.quantization.pt2e.quantizer.quantizer import Q_ANNOTATION_KEY

_ATEN = torch.ops.aten
_CONV, _LINEAR = _ATEN.conv2d.default, _ATEN.linear.default
_ADD = (_ATEN.add.Tensor, _ATEN.add_.Tensor)
_MUL = (_ATEN.mul.Tensor, _ATEN.mul_.Tensor)
_CAT = _ATEN.cat.default
_MEAN = (_ATEN.adaptive_avg_pool2d.default, _ATEN.mean.dim)
# Between a concatenation and the convolution that reads it.
_SIMPLE = (_ATEN.relu.default, _ATEN.relu_.default, _ATEN.max_pool2d.default)
# Products that have no integer kernel: named, and computed in float32.
_WITHOUT = {
    _ATEN.conv1d.default: "a 1-d convolution",
    _ATEN.conv3d.default: "a 3-d convolution",
    _ATEN.conv_transpose1d.default: "a transposed convolution",
    _ATEN.conv_transpose2d.input: "a transposed convolution",
    _ATEN.conv_transpose3d.input: "a transposed convolution",
    _ATEN.matmul.default: "a product of two activations",
    _ATEN.bmm.default: "a product of two activations",
    _ATEN.scaled_dot_product_attention.default: "attention",
}
_SHARE = 1e-4  # of the values that a percentile leaves out, one half on each side
_MOST = 1 << 20  # values of one tensor that a percentile looks at


class PercentileObserver(MinMaxObserver):  # type: ignore[misc]
    """The range without the outermost values of each batch; the widest of all batches."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        if x.numel():
            flat = x.detach().reshape(-1).float()
            flat = flat[:: -(-flat.numel() // _MOST)]
            # Of few values none may lie outside, so that one is always left out at each end.
            low = torch.quantile(flat, _SHARE / 2, interpolation="higher")
            high = torch.quantile(flat, 1 - _SHARE / 2, interpolation="lower")
            self.min_val.copy_(torch.minimum(self.min_val, low))
            self.max_val.copy_(torch.maximum(self.max_val, high))
        return x


OBSERVERS = {"minmax": MinMaxObserver, "percentile": PercentileObserver}


def _weight_is_known(node: fx.Node) -> bool:
    weight = node.args[1]
    return isinstance(weight, fx.Node) and weight.op == "get_attr"


def _value(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    floats = isinstance(value, torch.Tensor) and value.dtype == torch.float32
    return value if floats else None


class Quantizer:
    """Annotates a graph for ``prepare_pt2e``.

    Parameters
    ----------
    observer
        A name of :data:`OBSERVERS`, for activations: uint8 with a zero point. Weights are int8
        without one, by output channel.
    """

    def __init__(self, observer: str) -> None:
        self._activation = QuantizationSpec(
            torch.uint8, OBSERVERS[observer].with_args(eps=2**-20), 0, 255,
            torch.per_tensor_affine,
        )  # fmt: skip
        self._weight = QuantizationSpec(
            torch.int8, PerChannelMinMaxObserver.with_args(eps=2**-20), -127, 127,
            torch.per_channel_symmetric, ch_axis=0,
        )  # fmt: skip
        self.quantised: list[str] = []
        self.kept: dict[str, str] = {}

    def transform_for_annotation(self, model: fx.GraphModule) -> fx.GraphModule:
        """Part of PT2E's protocol: nothing to change."""
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Part of PT2E's protocol."""

    def prepare_obs_or_fq_callback(self, model: fx.GraphModule, observers: Any) -> None:
        """Part of PT2E's protocol."""

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Say what is observed."""
        nodes = list(model.graph.nodes)
        for node in nodes:
            if node.target in (_CONV, _LINEAR):
                self._product(node)
            elif node.target in _WITHOUT:
                self.kept[place_of(node)] = f"{_WITHOUT[node.target]} has no integer kernel"
        for node in nodes:
            if node.target in _ADD:
                self._residual(node)
            elif node.target is _CAT:
                self._concatenation(node)
            elif node.target in _MUL:
                self._gate(node)
        for node in nodes:
            if node.target in _MEAN:
                self._mean(node)
        return model

    def _product(self, node: fx.Node) -> None:
        why = self._refusal(node)
        if why:
            self.kept[place_of(node)] = why
            return
        self.quantised.append(place_of(node))
        self._observe(node, [node.args[0]], weight=node.args[1])

    def _refusal(self, node: fx.Node) -> str:
        if _value(node.args[0]) is None or _value(node) is None:
            return "it does not compute in float32"
        if not _weight_is_known(node):
            return "its weight is computed"
        if node.target is _CONV:
            groups = node.args[6] if len(node.args) > 6 else 1
            weight = node.args[1].meta["val"]  # type: ignore[union-attr]
            depthwise = weight.shape[1] == 1 and groups == weight.shape[0]
            if groups != 1 and not depthwise and weight.shape[1] % 4:
                return f"its groups of {weight.shape[1]} channels fill no words of four bytes"
        return ""

    def _observe(self, node: fx.Node, inputs: Iterable[Any], weight: Any = None) -> None:
        specs: dict[fx.Node, Any] = dict.fromkeys(inputs, self._activation)
        if weight is not None:
            specs[weight] = self._weight
        node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(specs, None, _annotated=True)

    def _is_image(self, node: Any) -> bool:
        value = _value(node)
        return value is not None and value.ndim == 4

    def _residual(self, node: fx.Node) -> None:
        """All terms but the one whose kernel adds the others."""
        terms = [a for a in node.args[:2] if isinstance(a, fx.Node)]
        if len(terms) != 2 or terms[0] is terms[1] or not all(map(self._is_image, terms)):
            return
        one, other = (t.meta["val"].shape for t in terms)
        if one != other:
            return
        order = {n: i for i, n in enumerate(node.graph.nodes)}
        adding = [t for t in terms if len(t.users) == 1 and _anchor(t) is not None]
        last = max(adding, key=order.__getitem__, default=None)
        self._observe(node, [t for t in terms if t is not last])

    def _concatenation(self, node: fx.Node) -> None:
        """Parts of one grid, so that nothing is computed where they are put together."""
        parts: Any = node.args[0]
        if not all(self._is_image(p) for p in parts) or not _leads_to_conv(node):
            return
        first = parts[0]
        shared = SharedQuantizationSpec((first, node))
        specs = {p: shared for p in parts if p is not first} | {first: self._activation}
        node.meta[Q_ANNOTATION_KEY] = QuantizationAnnotation(specs, shared, _annotated=True)

    def _gate(self, node: fx.Node) -> None:
        """An image times one number a channel."""
        image = [a for a in node.args[:2] if self._is_image(a)]
        if len(image) != 2:
            return
        sizes = [a.meta["val"].shape for a in image]  # type: ignore[union-attr]
        small = [i for i, s in enumerate(sizes) if s[2:] == (1, 1) and sizes[1 - i][2:] != (1, 1)]
        if len(small) == 1:
            self._observe(node, [image[1 - small[0]]])

    def _mean(self, node: fx.Node) -> None:
        """What a mean reads, where everybody else reads it as integers too."""
        x = node.args[0]
        if not isinstance(x, fx.Node) or not self._is_image(x):
            return
        others = [u for u in x.users if u is not node]
        if all(Q_ANNOTATION_KEY in u.meta for u in others):
            self._observe(node, [x])


def _anchor(node: fx.Node) -> fx.Node | None:
    """The convolution or product that ``node`` is, through a batch norm."""
    while node.target is _ATEN.batch_norm.default and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node if node.target in (_CONV, _LINEAR) else None


def _leads_to_conv(node: fx.Node) -> bool:
    for user in node.users:
        if user.target is _CONV or (user.target in _SIMPLE and _leads_to_conv(user)):
            return True
    return False


def place_of(node: fx.Node) -> str:
    """Path of the module that a node comes from, or its own name."""
    paths = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(paths[-1]) if paths and paths[-1] else str(node.name)
