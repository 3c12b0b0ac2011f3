"""Published scaling results, which are shown for reference. They are validated against the workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from statistics import median
from typing import Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from hidl_cli import paths
from hidl_cli.analysis.scaling import Kind
from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs.check import Strict
from hidl_cli.inputs.overlay import list_all
from hidl_cli.inputs.problems import clipped, nearest
from hidl_cli.plan.checks import load_workload


def find_unmatched(references: Sequence[Reference]) -> Iterator[Problem]:
    """Yield a problem for each reference to a workload that is unknown or has a different kind of scaling or metric."""
    known = [entry.name for entry in list_all("workload")]
    for reference in references:
        for name in reference.workloads:
            if name not in known:
                message = f"reference {reference.id}: unknown workload `{clipped(name)}`"
                path = (reference.id, "workloads")
                yield Problem(message, "a name from hidl workload list", path, suggestion=nearest(name, known))
                continue
            yield from _check_scaling(reference, name)


def _check_scaling(reference: Reference, name: str) -> Iterator[Problem]:
    scaling = load_workload(name).scaling
    if scaling is None:
        message = f"reference {reference.id}: workload {name} has no `scaling`"
        yield Problem(message, "a workload with `scaling`", (reference.id, "workloads"))
        return
    if reference.kind != scaling.kind:
        message = f"reference {reference.id}: {reference.kind} scaling, but workload {name} has {scaling.kind} scaling"
        yield Problem(message, f"kind: {scaling.kind}", (reference.id, "kind"), suggestion=scaling.kind)
    if reference.metric not in (None, scaling.metric):
        message = f"reference {reference.id}: `{clipped(str(reference.metric))}` is not the scaling metric of {name}"
        yield Problem(message, f"metric: {scaling.metric}", (reference.id, "metric"), suggestion=scaling.metric)


LEAST_OWN = 3  # minimum number of earlier studies on the site, which then replace published results


class MeasuredFigures(Strict):
    """The measurements behind an efficiency: a speed-up, or two rates per rank."""

    speedup: float | None = Field(None, gt=0)
    value: float | None = Field(None, gt=0)
    baseline: float | None = Field(None, gt=0)
    unit: str | None = None


class Reference(Strict):
    """A published result.

    ``scale`` is a number of ``unit``. ``workloads`` and ``sites`` contain names used in hidl. ``metric`` is the
    workloads' scaling metric (None for any metric).
    """

    id: str
    title: str
    workloads: list[str]
    kind: Kind
    metric: str | None = None
    platform: str
    sites: list[str] = Field(default_factory=list)
    scale: int = Field(gt=0)
    unit: Literal["GPUs", "nodes", "cores"]
    measured: MeasuredFigures | None = None
    efficiency: float = Field(gt=0)
    usable_as: Literal["absolute", "shape", "context"]
    source: str

    @property
    def computed(self) -> float | None:
        """The efficiency computed from the measurements, or None if only the efficiency was published."""
        if self.measured is None:
            return None
        if self.measured.speedup is not None:
            return self.measured.speedup / self.scale
        if self.measured.value is not None and self.measured.baseline is not None:
            return self.measured.value / self.measured.baseline
        return None

    @model_validator(mode="after")
    def _agrees(self) -> Reference:
        computed = self.computed
        if computed is not None and abs(computed - self.efficiency) > 0.001:
            raise ValueError(f"the measurements of {self.id} give {computed:.3f}, not {self.efficiency}")
        return self


class PublishedFigure(Strict):
    """A published figure other than an efficiency, such as a speed-up over another library.

    All ``workloads`` do the same kind of work. The figure applies to runs whose parameters have one of the values in
    ``when``.
    """

    id: str
    figure: str
    title: str
    workloads: list[str]
    when: dict[str, list[str]] = Field(default_factory=dict)
    scale: str
    platform: str
    source: str


AnyReference = TypeVar("AnyReference", Reference, PublishedFigure)


@cache
def load_references() -> tuple[Reference, ...]:
    """Load ``recipes/references/scaling.yaml``. Raises ``InvalidInput`` if it is invalid."""
    return _load("scaling.yaml", "references", Reference)


@cache
def load_figures() -> tuple[PublishedFigure, ...]:
    """Load ``recipes/references/figures.yaml``. Raises ``InvalidInput`` if it is invalid."""
    return _load("figures.yaml", "figures", PublishedFigure)


def _load(name: str, key: str, kind: type[AnyReference]) -> tuple[AnyReference, ...]:
    import yaml

    path = paths.shipped() / "recipes" / "references" / name
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        return tuple(TypeAdapter(list[kind]).validate_python(document[key]))  # type: ignore[valid-type]
    except (OSError, KeyError, TypeError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"cannot read the published results in {path}: {error}") from error


def published_figures(workload: str, parameters: Mapping[str, object], *, is_study: bool) -> list[dict[str, str]]:
    """Return published figures, for reference, that apply to the work that a run does.

    Each item has a figure, its title, scale, platform (the hardware) and source.

    Args:
        workload: Name of the workload.
        parameters: Values of the workload's parameters.
        is_study: Whether the run measured scaling, in which case published efficiencies apply.
    """
    found = [
        {
            "figure": f"{reference.efficiency:.3f} efficiency ({reference.kind} scaling)",
            "title": reference.title,
            "scale": f"{reference.scale:,} {reference.unit}",
            "platform": reference.platform,
            "source": reference.source,
        }
        for reference in load_references()
        if is_study and workload in reference.workloads
    ]
    for figure in load_figures():
        applies = all(str(parameters.get(name)) in values for name, values in figure.when.items())
        if workload in figure.workloads and applies:
            found.append({key: getattr(figure, key) for key in ("figure", "title", "scale", "platform", "source")})
    return found


def format_reference(
    workload: str, *, kind: Kind, metric: str, n: int, site: str, own: Sequence[float] = ()
) -> str | None:
    """Describe the efficiency found by earlier or published studies at a scale. Returns None if there are none.

    Earlier studies on the site take precedence. Among published results, those on the same site are preferred, then
    those at the nearest scale.

    Args:
        workload: Name of the workload.
        kind: Kind of scaling.
        metric: Scaling metric.
        n: Scale, as a multiple of the smallest step.
        site: Name of the site.
        own: Efficiencies found by earlier studies of the same size on the site.
    """
    if len(own) >= LEAST_OWN:
        found = f"a median of {median(own):.3f} in {len(own)} earlier studies ({min(own):.3f} to {max(own):.3f})"
        return f"here before: {found}"
    fitting = [
        reference
        for reference in load_references()
        if workload in reference.workloads
        and reference.kind == kind
        and reference.metric in (None, metric)
        and reference.usable_as != "context"
    ]
    if not fitting:
        return None
    best = min(fitting, key=lambda reference: (site not in reference.sites, abs(math.log(reference.scale / n))))
    where = f"{best.scale} {best.unit} ({best.platform}; {best.title}; {best.source})"
    return f"published, for comparison: {best.efficiency:.3f} on {where}"
