"""Networks whose packages hold weights only, or in a form that transformers does not read."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


def efficientnet_lite0(path: Path) -> nn.Module:
    """Image classifier (1000 classes) of the package efficientnet-lite-pytorch."""
    from efficientnet_lite_pytorch import EfficientNet

    module: nn.Module = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=str(path))
    return module


class SpeakerEmbedding(nn.Module):
    """Three layers of LSTM over mel frames; the last state says who speaks."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(40, 256, 3, batch_first=True)
        self.linear = nn.Linear(256, 256)

    def forward(self, mels: torch.Tensor) -> torch.Tensor:
        """Embeddings of length 1 [batch, 256] of mel frames [batch, time, 40]."""
        _, (hidden, _) = self.lstm(mels)
        return functional.normalize(self.linear(hidden[-1]).relu(), dim=1)


def speaker_embedding(path: Path) -> nn.Module:
    """The encoder of the package Resemblyzer."""
    stored = torch.load(path, map_location="cpu", weights_only=False)["model_state"]
    module = SpeakerEmbedding()
    module.load_state_dict({k: v for k, v in stored.items() if not k.startswith("similarity")})
    return module


def mtcnn_pnet(path: Path) -> nn.Module:
    """First stage of MTCNN (Zhang et al., arXiv:1604.02878): candidates for faces."""
    trunk = _convolutions((3, 10, 16, 32), (3, 3, 3), (2, None, None))
    heads = {"conv4_1": nn.Conv2d(32, 2, 1), "conv4_2": nn.Conv2d(32, 4, 1)}
    return _stored(Cascade(trunk, heads, "conv4_1"), path)


def mtcnn_onet(path: Path) -> nn.Module:
    """Last stage of MTCNN: face, box and five landmarks."""
    trunk = _convolutions((3, 32, 64, 64, 128), (3, 3, 3, 2), (3, 3, 2, None))
    trunk["turned"] = _Columns()
    trunk["dense5"] = nn.Linear(1152, 256)
    trunk["prelu5"] = nn.PReLU(256)
    heads = {f"dense6_{i}": nn.Linear(256, width) for i, width in ((1, 2), (2, 4), (3, 10))}
    return _stored(Cascade(trunk, heads, "dense6_1"), path)


class Cascade(nn.Module):
    """A stage of MTCNN: a trunk with several heads, of which one gives probabilities."""

    def __init__(
        self, trunk: OrderedDict[str, nn.Module], heads: dict[str, nn.Module], classes: str
    ) -> None:
        super().__init__()
        self.order, self.heads, self.classes = tuple(trunk), tuple(heads), classes
        for name, part in {**trunk, **heads}.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """What each head says of images [batch, 3, height, width]."""
        for name in self.order:
            x = self.get_submodule(name)(x)
        found = {name: self.get_submodule(name)(x) for name in self.heads}
        found[self.classes] = found[self.classes].softmax(1)
        return tuple(found.values())


class _Columns(nn.Module):
    """Flat features in the order of the original's framework: columns first."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.permute(0, 3, 2, 1).flatten(1)


def _convolutions(
    channels: tuple[int, ...], kernels: tuple[int, ...], pools: tuple[int | None, ...]
) -> OrderedDict[str, nn.Module]:
    """Convolution, PReLU and pooling by the number of their layer."""
    found: OrderedDict[str, nn.Module] = OrderedDict()
    for i, (kernel, pool) in enumerate(zip(kernels, pools, strict=True)):
        found[f"conv{i + 1}"] = nn.Conv2d(channels[i], channels[i + 1], kernel)
        found[f"prelu{i + 1}"] = nn.PReLU(channels[i + 1])
        if pool:
            found[f"pool{i + 1}"] = nn.MaxPool2d(pool, 2, ceil_mode=True)
    return found


def _stored(module: nn.Module, path: Path) -> nn.Module:
    module.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return module
