"""Findings of a verification: one ``Check`` for each condition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One thing that must hold, whether it does, and what was seen."""

    name: str
    ok: bool
    detail: str
