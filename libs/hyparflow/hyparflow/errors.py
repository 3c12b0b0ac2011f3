"""The errors of this library, one tree: `except HyparflowError` catches them all."""

from __future__ import annotations


class HyparflowError(Exception):
    """The root. Its text says what failed, why, and what to do."""


class PlanError(HyparflowError):
    """A request that no plan can fulfil; `findings` holds everything that is wrong with it, not just the first."""

    def __init__(self, *findings: str) -> None:
        super().__init__("; ".join(findings))
        self.findings = findings


class DataError(HyparflowError, ValueError):
    """What was handed over to train, evaluate or predict does not fit the model, the batch, or the other ranks'."""


class CheckpointError(HyparflowError):
    """A checkpoint is not whole, is another model's, or is in the way."""


class RequestError(HyparflowError, ValueError):
    """What was asked for cannot be done with this model or these ranks."""
