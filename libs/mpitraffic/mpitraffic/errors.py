"""Errors with a hint."""

from __future__ import annotations


class TrafficError(Exception):
    """A failure that the user can act on."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
