"""A model small enough for every test of the bench; loaded as ``bench_tiny:make``."""

import torch
from torch import nn


def make():
    """A convolution, a batch norm and a linear layer, with their example input."""
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5)
    )
    return layers, (torch.randn(1, 3, 8, 8),)
