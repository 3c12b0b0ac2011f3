"""What a call raises, as text: for programs on ranks, which compare it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def error_of(act: Callable[[], Any]) -> str:
    """Return the type and the message of what ``act`` raises; TensorFlow wraps errors in some of its own."""
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
