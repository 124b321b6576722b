"""A recommender after DLRM (Naumov et al., arXiv:1906.00091): bags of embeddings, dots, MLPs."""

from __future__ import annotations

import torch
from torch import nn

_DENSE = 13  # numbers a sample has, as in the Criteo data set


class Recommender(nn.Module):
    """Click probability from numbers and bags of ids.

    Parameters
    ----------
    rows
        Rows of each embedding table; one bag of ids for each.
    width
        Of an embedding.
    """

    def __init__(
        self, rows: tuple[int, ...] = (100_000, 20_000, 5_000, 100), width: int = 64
    ) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(n, width, mode="sum") for n in rows)
        self.bottom = nn.Sequential(
            nn.Linear(_DENSE, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, width), nn.ReLU(),
        )  # fmt: skip
        features = len(rows) + 1
        first, second = torch.tril_indices(features, features, -1)
        self.register_buffer("first", first, persistent=False)
        self.register_buffer("second", second, persistent=False)
        pairs = features * (features - 1) // 2
        self.top = nn.Sequential(
            nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(),
            nn.Linear(256, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, dense: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """``dense`` [batch, 13] and for each table ids [batch, ids in a bag]."""
        x = self.bottom(dense)
        features = torch.stack([x, *(bag(i) for bag, i in zip(self.bags, ids, strict=True))], 1)
        dots = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return self.top(torch.cat((x, dots), 1))
