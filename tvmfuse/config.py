"""Frozen option records, and the only place that reads environment variables.

``TVMFUSE_LOG_DIR``
    Where tuning logs lie when ``--log-dir`` is not given; else ``tuning_logs`` in the working
    directory.
``TVMFUSE_THREADS``
    Threads a kernel may use when ``--threads`` is not given; else all CPUs of this process.
``CUDA_PATH``, ``CUDA_HOME``
    A CUDA toolkit, behind that of the installed packages.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.errors import OptionError
from tvmfuse.signature import OWN_TYPES

DEFAULT_TUNE_BUDGET_S = 600.0
DTYPES = ("float32", "float16", "bfloat16", "int8")
HALVES = ("float16", "bfloat16")
OBSERVERS = ("minmax", "percentile")
MEASURES = ("auto", "local", "none")
FALLBACKS = ("none", "eager")
ACCUMULATIONS = ("plain", "compensated")
ELEMENT_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8",
                 "uint8", "bool")  # fmt: skip
InputShape = tuple[int, ...] | tuple[tuple[int, ...], str]  # extents, or extents and element type
MAX_SEED = 2**62  # verification draws from the next ones too, and seeds of PyTorch end at 2**63


def environment_threads() -> int | None:
    """Value of ``TVMFUSE_THREADS``, None if unset; raises OptionError if it is no number."""
    text = os.environ.get("TVMFUSE_THREADS")
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise OptionError(f"TVMFUSE_THREADS must be a positive integer, got {text!r}")
    return int(text)


def default_log_dir() -> Path:
    """Folder of the tuning logs when none is named."""
    return Path(os.environ.get("TVMFUSE_LOG_DIR") or "tuning_logs")


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Set a variable that TVM reads, while the context is open; for one thread at a time."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def cuda_homes() -> tuple[Path, ...]:
    """Folders that may hold a CUDA toolkit, the named ones first."""
    named = (os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    return tuple(Path(home) for home in named if home)


def shipped_log_dir() -> Path | None:
    """Folder of the logs that came with the package, read-only; None if none came along.

    In a wheel they lie inside the package, in a checkout (installed editable) beside it.
    """
    package = Path(__file__).resolve().parent
    if (package / "tuning_logs").is_dir():
        return package / "tuning_logs"
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "tuning_logs").is_dir():
        return checkout / "tuning_logs"
    return None


def shape_and_type(given: InputShape) -> tuple[tuple[int, ...], str | None]:
    """Extents and element type of one ``--shape``; the type is None where it is not given."""
    if len(given) == 2 and isinstance(given[1], str):
        return tuple(given[0]), given[1]  # type: ignore[arg-type]
    return tuple(given), None  # type: ignore[arg-type]


@dataclass(frozen=True)
class CompileOptions:
    """Everything that ``tune`` and ``compile`` are asked for.

    Parameters
    ----------
    model
        Name of a zoo model, ``package.module:callable``, or path of a ``.pt2`` file.
    target
        As ``tvmfuse.hardware.resolve_target`` takes it.
    batch
        Extent of the first axis of every input; None keeps the model's own.
    shape
        Shapes of all inputs, with an element type (``((1, 128), "int64")``) or without; None
        keeps the model's own. Not together with ``batch``.
    dtype
        ``"float32"``: the model keeps its own types. ``"float16"`` or ``"bfloat16"``: operands of
        a float32 model's convolutions and products become halves, by the table of
        `tvmfuse.precision.mixed`; what it takes and returns keeps its type.
        ``"int8"``: quantised behind its training, see `tvmfuse.precision.quantize`.
    calibrate
        For ``dtype="int8"``: ``package.module:function``, or a function, that gives batches of
        the model's arguments; ``"random"`` draws numbers instead.
    observer
        For ``dtype="int8"``: how ranges follow from the batches, ``"minmax"`` or ``"percentile"``.
    weights
        ``"random"``, or a state dict's path; None takes the best that can be had.
    trials
        Candidates to measure; 0 uses the templates alone. None with a ``time_budget_s``: no
        limit but time; None without: as 0.
    time_budget_s
        Seconds that tuning may take; None: no limit but ``trials``.
    log_dir
        Folder of the tuning logs; None is replaced by ``TVMFUSE_LOG_DIR`` or ``tuning_logs``.
    output
        Folder of the artifact; None is replaced by ``build/<model>-<target>``, with ``-<dtype>``
        behind it for another than float32.
    seed
        Seed of random weights, inputs and the search.
    measure
        ``"local"``: on this machine, in a child process; ``"none"``: nothing, not even the
        artifact; ``"auto"``: as local on a CPU, as none for a GPU.
    threads
        Threads a kernel may use; None is replaced by ``TVMFUSE_THREADS``, if that is set.
    no_log
        Build from the templates alone: neither the own nor the shipped log is read.
    retune
        Measure again even what the log already holds.
    fallback
        ``"none"``: a model with operators that cannot be compiled is refused. ``"eager"``: PyTorch
        runs these, and the artifact needs PyTorch.
    accumulation
        ``"plain"``, or ``"compensated"``: norms, means, variances and softmax outside of attention
        correct what their sums lose, and take longer.
    metric, data
        ``package.module:function`` of the user's own measure, and what it is taken over; see
        `tvmfuse.verify.metric`. The run fails where it differs from eager's by more than 0.1 %.
    rules
        A TOML or Python file with rules of fusion of the user's own; None: those of the library.
    no_rule, only
        Names and categories of rules that are switched off, or that alone stay on.

    Raises
    ------
    OptionError
        When an option cannot be honoured, alone or together with another one.
    """

    model: str
    target: str = "llvm"
    batch: int | None = None
    shape: tuple[InputShape, ...] | None = None
    dtype: str = "float32"
    calibrate: Any = None
    observer: str | None = None
    weights: str | None = None
    trials: int | None = None
    time_budget_s: float | None = None
    log_dir: Path | None = None
    output: Path | None = None
    seed: int = 0
    measure: str = "auto"
    threads: int | None = None
    retune: bool = False
    no_log: bool = False
    fallback: str = "none"
    accumulation: str = "plain"
    metric: str | None = None
    data: str | None = None
    rules: Path | None = None
    no_rule: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.threads is None:
            object.__setattr__(self, "threads", environment_threads())
        object.__setattr__(self, "log_dir", Path(self.log_dir or default_log_dir()))
        object.__setattr__(self, "output", Path(self.output or self._default_output()))
        self._check_model_and_shape()
        self._check_choices()
        self._check_quantisation()
        self._check_numbers()
        self._check_weights()

    @property
    def computes(self) -> str:
        """Of the signature (`tvmfuse.signature.Signature`)."""
        return self.dtype if self.dtype in HALVES else OWN_TYPES

    def _default_output(self) -> Path:
        name = Path(self.model).stem if self.model.endswith((".pt2", ".onnx")) else self.model
        other = "" if self.dtype == DTYPES[0] else f"-{self.dtype}"
        slug = re.sub(r"[^A-Za-z0-9._]+", "-", f"{name}-{self.target}{other}").strip("-")
        return Path("build") / slug

    def _check_model_and_shape(self) -> None:
        if not self.model.strip():
            raise OptionError("--model is empty; name a model, package.module:callable or FILE.pt2")
        if self.batch is not None and self.shape is not None:
            raise OptionError(
                "--batch and --shape are both given; --shape says the batch already, so drop one"
            )
        for given in self.shape or ():
            shape, dtype = shape_and_type(given)
            if not shape or min(shape) < 1:
                raise OptionError(f"every extent of --shape must be positive, got {shape}")
            if dtype is not None and dtype not in ELEMENT_TYPES:
                raise OptionError(
                    f"--shape {given}: {dtype!r} is no element type; choose from "
                    + ", ".join(ELEMENT_TYPES)
                )

    def _check_choices(self) -> None:
        if self.dtype not in DTYPES:
            raise OptionError(
                f"--dtype {self.dtype} is not in this release, which has {', '.join(DTYPES)}"
            )
        if self.dtype in HALVES and self.fallback != "none":
            raise OptionError(
                f"--dtype {self.dtype} and --fallback {self.fallback} do not go together: what "
                "PyTorch runs between the parts would stay float32; drop one of them"
            )
        if self.measure not in MEASURES:
            raise OptionError(
                f"--measure {self.measure} is not in this release, which has {', '.join(MEASURES)}"
                " (auto and local measure on this machine)"
            )
        if self.measure == "none" and (self.trials or self.time_budget_s is not None):
            raise OptionError("--measure none measures nothing, which tuning needs: --trials 0")

        if self.accumulation not in ACCUMULATIONS:
            raise OptionError(
                f"--accumulation {self.accumulation} is unknown; choose from "
                + ", ".join(ACCUMULATIONS)
            )
        if (self.metric is None) != (self.data is None):
            raise OptionError("--metric and --data belong together; give both or none")
        if self.fallback not in FALLBACKS:
            raise OptionError(
                f"--fallback {self.fallback} is unknown; choose from {', '.join(FALLBACKS)}"
            )

    def _check_quantisation(self) -> None:
        given = [
            option
            for option, value in (("--calibrate", self.calibrate), ("--observer", self.observer))
            if value is not None
        ]
        if self.dtype != "int8" and given:
            raise OptionError(f"{' and '.join(given)} belong to --dtype int8, which is not given")
        if self.dtype == "int8" and self.calibrate is None:
            raise OptionError(
                "--dtype int8 needs data to find ranges from: --calibrate module:function, or "
                "--calibrate random for ranges that no data stands behind"
            )
        if self.observer is not None and self.observer not in OBSERVERS:
            raise OptionError(
                f"--observer {self.observer} is unknown; choose from {', '.join(OBSERVERS)}"
            )

    def _check_numbers(self) -> None:
        for option, value, least in (
            ("--batch", self.batch, 1),
            ("--trials", self.trials, 0),
            ("--threads", self.threads, 1),
            ("--seed", self.seed, 0),
        ):
            if value is not None and value < least:
                raise OptionError(f"{option} must be at least {least}, got {value}")
        if self.seed > MAX_SEED:
            raise OptionError(f"--seed must be at most {MAX_SEED}, got {self.seed}")
        if self.time_budget_s is not None and not 0 < self.time_budget_s < float("inf"):
            raise OptionError(
                f"--time-budget must be a positive number of seconds, got {self.time_budget_s:g}; "
                "for no tuning at all use --trials 0"
            )
        if self.no_log and (self.trials or self.time_budget_s is not None or self.retune):
            raise OptionError(
                "--no-log builds from the templates alone, and tuning needs a log; drop --no-log, "
                "or name an empty folder with --log-dir"
            )
        if self.retune and self.trials == 0:
            raise OptionError("--retune measures again, which --trials 0 forbids; drop one of them")

    def _check_weights(self) -> None:
        if self.weights not in (None, "random") and not Path(str(self.weights)).is_file():
            raise OptionError(
                f"--weights {self.weights}: no such file; give the path of a state dict saved by "
                "torch.save, or 'random'"
            )
