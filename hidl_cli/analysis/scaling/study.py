"""A scaling study as data: observations, results, and its document ``hidl.verdict/1``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from hidl_cli.analysis.statistics import CONFIDENCE, Interval

if TYPE_CHECKING:
    from hidl_cli.plan.launch_plan import Baseline

SCHEMA = "hidl.verdict/1"

Kind = Literal["weak", "strong"]
Verdict = Literal["pass", "fail", "inconclusive"]


@dataclass(frozen=True, slots=True)
class Observation:
    """One measurement: ``value`` (throughput for weak, time for strong scaling) at ``step`` ranks in ``round``.

    ``step`` counts ranks or nodes, as the study does. A *copy* is one of several concurrent one-node programs, whose
    sum is the limit for larger steps; its ``step`` is its own size. ``hosts``: where it ran; a copy has one, and steps
    with hosts are compared with the copies on these.
    """

    step: int
    round: int
    value: float
    kind: Literal["step", "copy"] = "step"
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step over its repetitions; the baseline has efficiency 1, no interval and no verdict.

    ``mean`` is geometric, in the study's unit. ``efficiency`` and ``speedup`` are typical values over the rounds (the
    pseudomedian, see ``hidl_workloads.repetitions``), which outliers hardly move. ``variation``:
    the coefficient of variation of the repetitions, None for a single one. ``repetitions_needed``: how many would
    probably settle a step that is inconclusive for its noise.
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
class NodeSpeed:
    """The speed of a node by its copies: ``relative`` to the median node (0.9: 10 % slower), over all rounds.

    ``p``: the probability that the slowest of as many equal nodes is this far behind; ``slow``: p below 1 %, and at
    least 3 % behind.
    """

    host: str
    relative: float
    p: float | None
    slow: bool


@dataclass(frozen=True, slots=True)
class SerialFraction:
    """The serial fraction of one step, or (``n`` is None) of all steps together."""

    n: int | None
    value: float
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Amdahl's law (strong scaling) or Gustafson's (weak) through all steps, and the fraction of each step.

    ``rising``: the steps' fractions grow with their size, so the loss is not a fixed serial part but something that
    grows, such as communication. None if unknown.
    """

    law: Literal["amdahl", "gustafson"]
    overall: SerialFraction
    steps: tuple[SerialFraction, ...]
    rising: bool | None


@dataclass(frozen=True, slots=True)
class Study:
    """A judged scaling study. ``verdict`` is None if there is only a baseline; ``hint``: what to do next.

    ``against``: the baseline of the steps. ``max_half_width``: the precision that the user required, None for none.
    ``confidence``: that of each interval; it exceeds 95 % for several steps. ``nodes``: from copies. ``reference``: a
    sentence about earlier or published results, for orientation.
    """

    kind: Kind
    target: float
    metric: str
    unit: str
    step_unit: str
    max_half_width: float | None
    observations: tuple[Observation, ...]
    steps: tuple[StepResult, ...]
    verdict: Verdict | None
    reason: str
    hint: str | None
    against: Baseline = "single"
    confidence: float = CONFIDENCE
    nodes: tuple[NodeSpeed, ...] = ()
    fit: Fit | None = None
    reference: str | None = None

    @property
    def baseline(self) -> StepResult:
        """The baseline of the other steps."""
        return self.steps[0]


def to_json(study: Study) -> dict[str, Any]:
    """Return ``study`` as plain values for ``verdict.json``."""
    return {"schema": SCHEMA, **asdict(study)}


def from_json(document: Mapping[str, Any]) -> Study:
    """Return the study written by ``to_json``; ``ValueError`` for any other document."""
    if document.get("schema") != SCHEMA:
        raise ValueError(f"schema is {document.get('schema')!r}, not {SCHEMA!r}")
    fields = {name: value for name, value in document.items() if name != "schema"}
    try:
        fields["observations"] = tuple(
            Observation(**{**observation, "hosts": tuple(observation.get("hosts", ()))})
            for observation in fields["observations"]
        )
        fields["steps"] = tuple(StepResult(**_with_interval(step)) for step in fields["steps"])
        fields["nodes"] = tuple(NodeSpeed(**node) for node in fields.get("nodes", ()))
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
