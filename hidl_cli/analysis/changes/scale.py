"""The scale on which values are compared: their ratios, or their differences where one of them is zero or less."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import fmean, median

#: Less than this part of another value is as good as 0; changes by less are those of floating-point arithmetic.
NEGLIGIBLE = 1e-9


@dataclass(frozen=True, slots=True)
class Scale:
    """Places of values on which shifts are measured; ``ratios``: they are logarithms, else the values themselves."""

    ratios: bool

    @classmethod
    def of(cls, values: Sequence[float]) -> Scale:
        """Return the scale of all these values, at least one, which are compared with each other."""
        return cls(ratios=min(values) > NEGLIGIBLE * max(values))

    def places(self, values: Iterable[float]) -> list[float]:
        """Return where these values lie."""
        return [math.log(value) for value in values] if self.ratios else list(values)

    def value(self, place: float) -> float:
        """Return the value that lies there."""
        return math.exp(place) if self.ratios else place

    def mean(self, values: Iterable[float]) -> float:
        """Return the value in the middle of these values' places: their geometric mean, or the arithmetic one."""
        return self.value(fmean(self.places(values)))

    def change(self, shift: float, before: float, after: float) -> float:
        """Return a shift of places as a fraction of the value ``before``; of the one ``after``, if that was 0.

        From 72 to 0 is -1.0, from 0 to 72 is +1.0. Between two values that are negligible beside the shift it is 1.0 or
        -1.0.
        """
        if self.ratios:
            return math.expm1(shift)
        base = abs(before) if abs(before) > NEGLIGIBLE * abs(after) else abs(after)
        if base <= NEGLIGIBLE * abs(shift):
            base = abs(shift)
        return shift / (base or 1.0)

    def rounding(self, values: Sequence[float]) -> float:
        """Return the greatest error of these values' places by the digits to which they were rounded.

        Programs print few digits (OMB: two decimals), and what is rounded to the same number is not without noise.
        """
        digit = 10.0 ** min(0, *(_exponent(value) for value in values))
        typical = median(map(abs, values)) or 1.0
        half = max(digit / 2, NEGLIGIBLE * typical)
        return half / typical if self.ratios else half


def _exponent(value: float) -> int:
    """Return the power of ten of a value's last digit: -2 of 1.25."""
    exponent = Decimal(repr(float(value))).normalize().as_tuple().exponent
    assert isinstance(exponent, int), value
    return exponent
