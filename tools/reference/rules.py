"""The page of doctor's rules, out of its catalogue."""

from __future__ import annotations


def pages() -> dict[str, str]:
    """The page; nothing before there is a catalogue."""
    return {}
