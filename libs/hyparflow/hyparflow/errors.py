"""The errors of this library, one tree. Every message says what failed, why, and what to do about it."""

from __future__ import annotations


class HyparflowError(Exception):
    """Whatever hyparflow refuses or cannot do."""


class UnsupportedModel(HyparflowError):
    """A model, or one of its layers, that cannot be cut into stages. The message names the layer and the reason."""


class PlanError(HyparflowError):
    """A request that no plan can fulfil; `findings` holds everything that is wrong with it, not just the first."""

    def __init__(self, *findings: str) -> None:
        super().__init__("; ".join(findings))
        self.findings = findings


class WorldError(HyparflowError):
    """The ranks that were started are not the ranks that the plan needs."""


class DataError(HyparflowError):
    """Data that does not fit the model or the plan."""


class CheckpointError(HyparflowError):
    """A checkpoint that is missing, incomplete, or of another model."""


class RequestError(HyparflowError):
    """What was asked for cannot be done: a model that is not compiled, a callback that cannot work, a wrong number."""
