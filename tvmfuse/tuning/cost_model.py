"""A cost model shared by all tasks: gradient-boosted trees on per-store features.

MetaSchedule's own XGBModel trains one row per store with a Python objective and up to 10 000
rounds, from scratch after every batch; here a candidate is one row, and training takes a
fraction of the time that measuring its batch took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.utils import shash2hex

_ROUNDS = 60
_FIRST_FIT = 16  # fewer samples than this predict nothing
_REFIT = 1.15  # train again when the data have grown by this factor
_MAX_ROWS = 6000
_BINS = 64


@derived_object
class SharedCostModel(ms.cost_model.PyCostModel):
    """Predicts how near to the best of its workload a candidate comes (1 is the best).

    Parameters
    ----------
    seed
        Seed of the trees and of the random scores before the first training.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._random = np.random.default_rng(seed)
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._rows: dict[str, list[np.ndarray]] = {}
        self._seconds: dict[str, list[float]] = {}
        self._fitted_on = 0
        self._booster: Any = None

    @property
    def samples(self) -> int:
        """How many results it has seen."""
        return sum(len(s) for s in self._seconds.values())

    def features(self, context: Any, candidates: Sequence[Any]) -> np.ndarray:
        """One row a candidate: sum and maximum over its stores."""
        stores = [f.numpy() for f in self._extractor.extract_from(context, list(candidates))]
        rows = [np.concatenate([s.sum(axis=0), s.max(axis=0)]) for s in stores]
        return np.asarray(rows, dtype="float32")

    def learn(self, context: Any, candidates: Sequence[Any], seconds: Sequence[float]) -> None:
        """Add results (infinite seconds: it failed) and train when enough are new."""
        if not candidates:
            return
        key = str(shash2hex(context.mod))
        self._rows.setdefault(key, []).extend(self.features(context, candidates))
        self._seconds.setdefault(key, []).extend(seconds)
        if self.samples >= max(_FIRST_FIT, _REFIT * self._fitted_on):
            self._fit()

    def update(self, context: Any, candidates: Any, results: Any) -> None:
        """MetaSchedule's way in; the same as ``learn``."""
        medians = [
            float(np.median([float(s) for s in r.run_secs])) if r.run_secs else float("inf")
            for r in results
        ]
        self.learn(context, candidates, medians)

    def predict(self, context: Any, candidates: Any) -> np.ndarray:
        """Scores, the larger the better; random before the first training."""
        if self._booster is None:
            return self._random.random(len(candidates))
        scores = self._booster.inplace_predict(self.features(context, candidates))
        return np.asarray(scores, dtype="float64")

    def load(self, path: str) -> None:
        """Not kept on disk: the tuning log's records teach it anew."""
        raise NotImplementedError(f"SharedCostModel is not stored; cannot load {path}")

    def save(self, path: str) -> None:
        """Not kept on disk: the tuning log's records teach it anew."""
        raise NotImplementedError(f"SharedCostModel is not stored; cannot save {path}")

    def _fit(self) -> None:
        import xgboost  # 0.5 s, and only tuning needs it

        rows = np.concatenate([np.stack(r) for r in self._rows.values()])[-_MAX_ROWS:]
        labels = np.concatenate([_scores(s) for s in self._seconds.values()])[-_MAX_ROWS:]
        # One thread: with a few thousand rows, OpenMP's spinning costs more than it saves.
        data = xgboost.QuantileDMatrix(rows, labels, weight=0.1 + labels, max_bin=_BINS, nthread=1)
        options = {
            "objective": "reg:squarederror",
            "max_depth": 6,
            "eta": 0.15,
            "tree_method": "hist",
            "max_bin": _BINS,
            "colsample_bytree": 0.5,
            "nthread": 1,
            "seed": self._seed,
        }
        self._booster = xgboost.train(options, data, num_boost_round=_ROUNDS)
        self._fitted_on = self.samples


def _scores(seconds: Sequence[float]) -> np.ndarray:
    """Best time over time; failures score nothing."""
    times = np.asarray(seconds, dtype="float64")
    ran = np.isfinite(times)
    scores = np.zeros_like(times)
    scores[ran] = times.min() / times[ran]
    return scores
