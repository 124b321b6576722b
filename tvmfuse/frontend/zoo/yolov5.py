"""YOLOv5 (release 7) as an nn.Module of our own, after its published architecture.

Layer by layer: https://github.com/ultralytics/yolov5/blob/v7.0/models/yolov5s.yaml. The output is
that of the detection head for inference, ``[batch, anchors, 5 + classes]``: centre, size (pixels),
objectness, class scores. Anchors are the published ones for COCO.
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

# Size -> multiples of depth and of width.
MULTIPLES = {"n": (0.33, 0.25), "s": (0.33, 0.5), "m": (0.67, 0.75), "l": (1.0, 1.0),
             "x": (1.33, 1.25)}  # fmt: skip
_ANCHORS = (
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
_STRIDES = (8, 16, 32)


class _Conv(nn.Module):
    """Convolution, batch norm, SiLU."""

    def __init__(
        self, cin: int, cout: int, size: int = 1, stride: int = 1, pad: int | None = None
    ) -> None:
        super().__init__()
        around = size // 2 if pad is None else pad
        self.conv = nn.Conv2d(cin, cout, size, stride, around, bias=False)
        self.bn = nn.BatchNorm2d(cout, eps=1e-3, momentum=0.03)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.bn(self.conv(x)))


class _Bottleneck(nn.Module):
    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = _Conv(channels, channels), _Conv(channels, channels, 3)
        self.shortcut = shortcut

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.shortcut else y


class _C3(nn.Module):
    """Cross-stage block: two halves, one through bottlenecks, concatenated."""

    def __init__(self, cin: int, cout: int, depth: int, shortcut: bool = True) -> None:
        super().__init__()
        half = cout // 2
        self.cv1, self.cv2, self.cv3 = _Conv(cin, half), _Conv(cin, half), _Conv(2 * half, cout)
        self.m = nn.Sequential(*(_Bottleneck(half, shortcut) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class _Sppf(nn.Module):
    """Spatial pyramid of three max pools, one behind the other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.cv1, self.cv2 = _Conv(channels, half), _Conv(4 * half, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = [self.cv1(x)]
        for _ in range(3):
            levels.append(self.pool(levels[-1]))
        return self.cv2(torch.cat(levels, 1))


class _Detect(nn.Module):
    """Boxes and scores of three scales."""

    def __init__(self, classes: int, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.outputs = 5 + classes
        self.m = nn.ModuleList(nn.Conv2d(c, 3 * self.outputs, 1) for c in channels)

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        found = []
        for head, x, anchors, stride in zip(self.m, levels, _ANCHORS, _STRIDES, strict=True):
            n, _, h, w = x.shape
            y = head(x).view(n, 3, self.outputs, h, w).permute(0, 1, 3, 4, 2).sigmoid()
            rows = torch.arange(h, dtype=x.dtype, device=x.device)
            columns = torch.arange(w, dtype=x.dtype, device=x.device)
            grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1) - 0.5
            sizes = torch.tensor(anchors, dtype=x.dtype, device=x.device).view(1, 3, 1, 1, 2)
            centre, size, scores = y.split((2, 2, self.outputs - 4), -1)
            boxes = torch.cat(((centre * 2 + grid) * stride, (size * 2) ** 2 * sizes, scores), -1)
            found.append(boxes.reshape(n, 3 * h * w, self.outputs))
        return torch.cat(found, 1)


class Yolov5(nn.Module):
    """The detector.

    Parameters
    ----------
    size
        A key of ``MULTIPLES``.
    classes
        80 for COCO.
    """

    def __init__(self, size: str = "s", classes: int = 80) -> None:
        super().__init__()
        deep, wide = MULTIPLES[size]

        def c(channels: int) -> int:
            return math.ceil(channels * wide / 8) * 8

        def n(count: int) -> int:
            return max(round(count * deep), 1)

        self.stem = nn.Sequential(
            _Conv(3, c(64), 6, 2, 2), _Conv(c(64), c(128), 3, 2), _C3(c(128), c(128), n(3)),
            _Conv(c(128), c(256), 3, 2), _C3(c(256), c(256), n(6)),
        )  # fmt: skip
        self.middle = nn.Sequential(_Conv(c(256), c(512), 3, 2), _C3(c(512), c(512), n(9)))
        self.deep = nn.Sequential(
            _Conv(c(512), c(1024), 3, 2), _C3(c(1024), c(1024), n(3)), _Sppf(c(1024)),
            _Conv(c(1024), c(512)),
        )  # fmt: skip
        self.up = nn.Sequential(_C3(c(1024), c(512), n(3), False), _Conv(c(512), c(256)))
        self.small = _C3(c(512), c(256), n(3), False)
        self.down1, self.medium = _Conv(c(256), c(256), 3, 2), _C3(c(512), c(512), n(3), False)
        self.down2, self.large = _Conv(c(512), c(512), 3, 2), _C3(c(1024), c(1024), n(3), False)
        self.detect = _Detect(classes, (c(256), c(512), c(1024)))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Detect on ``image`` [batch, 3, height, width], extents multiples of 32."""
        p3 = self.stem(image)
        p4 = self.middle(p3)
        p5 = self.deep(p4)
        q4 = self.up(torch.cat((F.interpolate(p5, scale_factor=2.0), p4), 1))
        small = self.small(torch.cat((F.interpolate(q4, scale_factor=2.0), p3), 1))
        medium = self.medium(torch.cat((self.down1(small), q4), 1))
        large = self.large(torch.cat((self.down2(medium), p5), 1))
        return self.detect([small, medium, large])
