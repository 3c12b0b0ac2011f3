"""The exceptions of this library. Every message says what failed, why, and what to do about it."""

from __future__ import annotations


class HyparflowError(Exception):
    """Base class of all exceptions of hyparflow."""


class UnsupportedModel(HyparflowError):
    """A model, or one of its layers, cannot be cut into stages. The message names the layer and the reason."""


class PlanError(HyparflowError):
    """No plan can fulfil a request; `findings` has all problems, not just the first."""

    def __init__(self, *findings: str) -> None:
        super().__init__("; ".join(findings))
        self.findings = findings


class WorldError(HyparflowError):
    """The ranks that were started do not match the plan."""


class DataError(HyparflowError):
    """The data does not fit the model or the plan."""


class CheckpointError(HyparflowError):
    """A checkpoint is missing, incomplete, or belongs to another model."""


class RequestError(HyparflowError):
    """A request is invalid: a model is not compiled, a callback is unsupported, a number is out of range."""
