"""The errors of this library, one tree: `except HyparflowError` catches them all."""

from __future__ import annotations


class HyparflowError(Exception):
    """The root. Its text says what failed, why, and what to do."""


class PlanError(HyparflowError):
    """A request that no plan can fulfil; `findings` holds everything that is wrong with it, not just the first."""

    def __init__(self, *findings: str) -> None:
        super().__init__("; ".join(findings))
        self.findings = findings


class WorldError(HyparflowError):
    """The ranks that were started are not the ranks that the plan needs."""
