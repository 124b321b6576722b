"""Every error a user can meet: what failed, with which values, and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class TvmfuseError(Exception):
    """Base of all errors raised on purpose by this package."""


class UnknownNameError(TvmfuseError):
    """A name is not one of the legal ones; the message lists the nearest.

    Parameters
    ----------
    kind
        What the name was meant to be, e.g. ``"target"``.
    name
        The name as the user wrote it.
    choices
        All legal names.
    hint
        One more sentence on what else is accepted.
    """

    def __init__(self, kind: str, name: str, choices: Iterable[str], hint: str = "") -> None:
        self.kind, self.name, self.choices = kind, name, tuple(choices)
        near = difflib.get_close_matches(name, self.choices, n=3, cutoff=0.5)
        if near:
            said = "did you mean " + " or ".join(repr(n) for n in near) + "?"
        else:
            shown = sorted(self.choices)
            tail = f" … ({len(shown)} in all)" if len(shown) > 24 else ""
            said = "choose from: " + ", ".join(shown[:24]) + tail
        super().__init__(f"unknown {kind} {name!r}; {said}" + (f" {hint}" if hint else ""))


class OptionError(TvmfuseError):
    """An option cannot be honoured, alone or together with another one."""


class DeviceError(TvmfuseError):
    """The target needs a device or a CPU feature that this machine lacks."""


class ImportModelError(TvmfuseError):
    """The model cannot be loaded, exported or imported."""


class UnsupportedOperatorError(ImportModelError):
    """Operators without a converter, all of them, with where the user's code calls them."""


class CalibrationError(TvmfuseError):
    """A model cannot be quantised: its data, or what it computes, gives no ranges."""


class UntraceableError(ImportModelError):
    """No single graph holds the model: its control flow or shapes depend on values."""


class LogError(TvmfuseError):
    """A tuning log cannot be opened, locked, read or written."""


class MeasureError(TvmfuseError):
    """Measuring as a whole cannot go on (a single bad candidate is a Failure, not this)."""


class BuildError(TvmfuseError):
    """The fused module does not compile for the target."""


class ArtifactError(TvmfuseError):
    """An artifact is missing, truncated, altered, or made for other hardware or versions."""


class InputError(TvmfuseError, TypeError):
    """A call passes arguments that do not fit the signature."""


class VerificationError(TvmfuseError):
    """The compiled module does not agree with the reference."""
