"""The tree of errors. Every message says what failed, why, and what to do about it."""

from __future__ import annotations


class HyparflowError(Exception):
    """Whatever hyparflow refuses or cannot do."""


class UnsupportedModel(HyparflowError):
    """A model, or one of its layers, that cannot be cut into stages. The message names the layer and the reason."""


class PlanError(HyparflowError):
    """A plan that cannot be made or cannot run: too many partitions, a cycle, a batch that does not divide."""


class DataError(HyparflowError):
    """Data that does not fit the model or the plan."""


class CheckpointError(HyparflowError):
    """A checkpoint that is missing, incomplete, or of another model."""
