"""A scaling study as data: what was observed, what it shows, and its document ``hidl.verdict/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hidl_cli.results.statistics import CONFIDENCE, Interval

SCHEMA = "hidl.verdict/1"

Kind = Literal["weak", "strong"]
Verdict = Literal["pass", "fail", "inconclusive"]
Baseline = Literal["single", "copies", "history"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement: ``value`` (throughput for weak, time for strong scaling) at ``step`` ranks in ``round``.

    ``step`` counts ranks or nodes, as the study does. A *copy* is one of several programs of one node each that ran at
    once, as the limit of what larger steps can reach; its ``step`` is its own size. ``hosts``: where it ran; a copy
    has one, and steps that name theirs are compared with the copies on these.
    """

    step: int
    round: int
    value: float
    kind: Literal["step", "copy"] = "step"
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """What the repetitions of one step show; the baseline has efficiency 1, no interval and no verdict.

    ``mean`` is geometric, in the study's unit, so that ``speedup`` and ``efficiency`` are ratios of means.
    ``variation`` is the coefficient of variation of the repetitions, None for a single one. ``repetitions_needed`` is
    how many would probably settle a step that is inconclusive for its noise.
    """

    n: int
    repetitions: int
    mean: float
    variation: float | None
    speedup: float
    ideal_speedup: float
    efficiency: float
    interval: Interval | None
    verdict: Verdict | None
    reason: str
    hint: str | None
    repetitions_needed: int | None


@dataclass(frozen=True, slots=True)
class Node:
    """How fast a node is, by its copies: ``relative`` to the median node (0.9: 10 % slower), over all rounds.

    ``p``: how likely the slowest of as many equal nodes would be as far from the others; ``slow``: less than 1 %, and
    3 % or more behind.
    """

    host: str
    relative: float
    p: float | None
    slow: bool


@dataclass(frozen=True, slots=True)
class SerialFraction:
    """The part of the work that does not scale, as one step shows it, or (``n`` is None) all of them together."""

    n: int | None
    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Amdahl's law (strong scaling) or Gustafson's (weak) through all steps, and the fraction of each step by itself.

    ``rising``: the steps' own fractions grow with their size, so it is no fixed serial part that costs the efficiency,
    but something that grows, such as communication. None where that cannot be told.
    """

    law: Literal["amdahl", "gustafson"]
    overall: SerialFraction
    steps: tuple[SerialFraction, ...]
    rising: bool | None


@dataclass(frozen=True, slots=True)
class Study:
    """A scaling study, judged. ``verdict`` is None where there is only a baseline; ``hint`` is the next thing to do.

    ``against``: what the steps are compared with. ``confidence``: that of all intervals; it exceeds 95 % where there
    are more than two steps, or where the study was looked at several times. ``nodes``: from copies. ``reference``: a
    sentence about earlier or published results, for orientation.
    """

    kind: Kind
    target: float
    metric: str
    unit: str
    step_unit: str
    max_half_width: float
    observations: tuple[Observation, ...]
    steps: tuple[Step, ...]
    verdict: Verdict | None
    reason: str
    hint: str | None
    against: Baseline = "single"
    confidence: float = CONFIDENCE
    nodes: tuple[Node, ...] = ()
    fit: Fit | None = None
    reference: str | None = None

    @property
    def baseline(self) -> Step:
        """What the others are compared with."""
        return self.steps[0]


def to_json(study: Study) -> dict[str, Any]:
    """Return ``study`` as plain values for ``verdict.json``."""
    return {"schema": SCHEMA, **asdict(study)}


def from_json(document: Mapping[str, Any]) -> Study:
    """Return the study that ``to_json`` wrote, as it was judged then; ``ValueError`` for any other document."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, not {SCHEMA!r}")
    fields = {name: value for name, value in document.items() if name != "schema"}
    try:
        fields["observations"] = tuple(
            Observation(**{**observation, "hosts": tuple(observation.get("hosts", ()))})
            for observation in fields["observations"]
        )
        fields["steps"] = tuple(Step(**_with_interval(step)) for step in fields["steps"])
        fields["nodes"] = tuple(Node(**node) for node in fields.get("nodes", ()))
        fields["fit"] = _fit(fields["fit"]) if fields.get("fit") else None
        return Study(**fields)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no valid {SCHEMA} document: {error}") from error


def _fit(fit: Mapping[str, Any]) -> Fit:
    overall = SerialFraction(**_with_interval(fit["overall"]))
    return Fit(
        fit["law"], overall, tuple(SerialFraction(**_with_interval(step)) for step in fit["steps"]), fit["rising"]
    )


def _with_interval(values: Mapping[str, Any]) -> dict[str, Any]:
    interval = values["interval"]
    return {**values, "interval": Interval(**interval) if interval else None}
