"""Job ids: a number, which Flux prints in base 58 behind a "ƒ" (F58, RFC 19)."""

from __future__ import annotations

import os

_DIGITS = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def f58(number: int) -> str:
    """``number`` as Flux prints it; FLUX_F58_FORCE_ASCII turns the "ƒ" into an "f"."""
    text = ""
    while number or not text:
        number, digit = divmod(number, 58)
        text = _DIGITS[digit] + text
    sign = "f" if os.environ.get("FLUX_F58_FORCE_ASCII") else "ƒ"
    return f"{sign}{text}"


def parse(word: str) -> int | None:
    """The number of an id as users write it: F58 behind "ƒ" or "f", decimal, or hexadecimal; None: not an id."""
    if word.isdecimal():
        return int(word)
    try:
        if word.startswith("0x"):
            return int(word, 16)
        if word[:1] in ("ƒ", "f") and word[1:]:
            number = 0
            for letter in word[1:]:
                number = number * 58 + _DIGITS.index(letter)
            return number
    except ValueError:
        pass
    return None
