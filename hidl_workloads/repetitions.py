"""How often to repeat a scaling study: an interval that holds for few values, looked at several times.

Used inside jobs, where there is NumPy and no hidl, and by hidl itself: the job stops by the very rule that the verdict
is made by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

RESAMPLES = 4000  # the half width is then known to about 2 %
LEAST = 3  # repetitions: two values have a spread, but no shape to resample
SAME = 1e-12  # logarithms that differ by less are equal but for rounding
WRONG = 0.05  # of the studies at the very target may be judged wrongly, to either side
FINEST = 0.005  # an efficiency known to ±0.5 % is known well enough, whatever the target
LOOKS = (3, 5, 8, 12, 18, 27, 40)  # the rounds after which a study is looked at
# Two-sided levels of each of k looks that together err in 5 % (Pocock 1977, Biometrika 64, 191-199), from k = 1 on.
_POCOCK = (0.05, 0.0294, 0.0221, 0.0182, 0.0158, 0.0142, 0.0130, 0.0120)


@dataclass(frozen=True)
class Decision:
    """Whether to stop, and why (or why not), in a sentence."""

    stop: bool
    why: str


def looks(rounds: int) -> tuple[int, ...]:
    """Return after which of at most ``rounds`` rounds a study is looked at: 3, 5, 8, 12, ... and the last one."""
    return (*(look for look in LOOKS if look < rounds), rounds)


def confidence(steps: int, looks: int = 1) -> float:
    """Return the confidence that the intervals of a study must have, so that 5 % of verdicts are wrong at most.

    ``steps``: those besides the baseline. One step that fails wrongly fails the study, so each may err to one side in
    ``5 %/steps`` (Bonferroni), which an interval of 95 % gives for two. ``looks``: each look may err less where there
    are several (Pocock).
    """
    level = min(WRONG, 2 * WRONG / max(1, steps))
    return 1 - level * _POCOCK[min(looks, len(_POCOCK)) - 1] / WRONG


def half_widths(samples: NDArray[Any], confidence: float, *, seed: int = 0) -> NDArray[Any]:
    """Return the half width of the interval of the mean of each row of ``samples`` (rows, n): (rows,).

    The interval is the symmetric bootstrap-t one, ``mean ± t*·s/√n`` with ``t*`` the quantile of
    ``|mean' - mean|·√n/s'`` over resamples (Efron & Tibshirani 1993, An Introduction to the Bootstrap, section 12.5;
    Hall 1988, J. R. Statist. Soc. B 50, 35-45). With few values a resample can hold one of them n times (``s' = 0``),
    so the resamples are smoothed (Polansky 2000, Canadian Journal of Statistics 28, 501-516) by Gaussian noise of
    width ``s/√n`` (Hesterberg 2004, Bootknife sampling vs. smoothing). n must be 2 or more, and no row constant.
    """
    import numpy as np

    n = samples.shape[1]
    random = np.random.default_rng(seed)
    picked = random.integers(0, n, size=(RESAMPLES, n))
    smoothing = random.standard_normal((RESAMPLES, n)) / math.sqrt(n)

    spread = samples.std(axis=1, ddof=1)
    standardised = np.sort((samples - samples.mean(axis=1, keepdims=True)) / spread[:, None], axis=1)
    resampled = standardised[:, picked] + smoothing  # (rows, resamples, n)
    t = np.abs(resampled.mean(axis=2)) * math.sqrt(n) / resampled.std(axis=2, ddof=1)
    widths: NDArray[Any] = np.quantile(t, confidence, axis=1) * spread / math.sqrt(n)
    return widths


def enough(
    efficiencies: Sequence[Sequence[float]], target: float, *, rounds: int, max_half_width: float = 0.10
) -> Decision:
    """Return whether to stop a study after the rounds that there are, of at most ``rounds``.

    ``efficiencies``: of each scaled step, those of its rounds so far. It stops, at one of ``looks(rounds)``, when one
    step lies below the target for certain (the study fails), when all lie above it (it passes), when every efficiency
    is known to ±0.5 % (it is too near to the target to be told from it), or when the rounds are spent. How certain
    that must be is what ``confidence`` says, so looking often does not make wrong verdicts frequent.
    """
    done, planned = min(map(len, efficiencies), default=0), looks(rounds)
    if done >= rounds:
        return Decision(True, f"all {rounds} rounds are measured")
    if done < LEAST or done not in planned:
        following = next(look for look in planned if look > done)
        return Decision(False, f"round {done} of {rounds}: the next look is after round {following}")
    return _look(
        [step[:done] for step in efficiencies], target, confidence(len(efficiencies), len(planned)), max_half_width
    )


def _look(efficiencies: Sequence[Sequence[float]], target: float, confidence: float, max_half_width: float) -> Decision:
    import numpy as np

    logs = np.log(np.array(efficiencies, dtype=float))
    rounds = f"after {logs.shape[1]} rounds"
    if (np.ptp(logs, axis=1) < SAME).any():
        return Decision(True, f"a step gives the same to the last digit {rounds}, which more will not change")
    widths = half_widths(logs, confidence)
    below, above = logs.mean(axis=1) + widths < math.log(target), logs.mean(axis=1) - widths >= math.log(target)
    narrow = np.sinh(widths) <= max_half_width
    reasons = {
        f"an efficiency lies below the target {rounds}": (below & narrow).any(),
        f"every efficiency reaches the target {rounds}": (above & narrow).all(),
        f"every efficiency is known to {FINEST:.1%} {rounds}, and one is at the target": (
            np.sinh(widths) <= FINEST
        ).all(),
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    return Decision(why is not None, why or f"undecided {rounds}: the widest interval is ±{np.sinh(widths).max():.1%}")
