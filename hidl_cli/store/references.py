"""Check that published results name existing workloads and their scaling metrics."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import median
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from hidl_cli import paths
from hidl_cli.analysis.scaling import Kind
from hidl_cli.errors import InvalidInput, Problem
from hidl_cli.inputs.check import Strict
from hidl_cli.inputs.overlay import list_all
from hidl_cli.inputs.problems import clipped, nearest
from hidl_cli.plan.checks import load_workload


def find_unmatched(references: Sequence[Reference]) -> Iterator[Problem]:
    """Yield each workload, kind or metric of a reference that does not exist."""
    known = [entry.name for entry in list_all("workload")]
    for reference in references:
        for name in reference.workloads:
            if name not in known:
                message = f"reference {reference.id}: unknown workload `{clipped(name)}`"
                yield Problem(
                    message,
                    "a name of hidl workload list",
                    (reference.id, "workloads"),
                    suggestion=nearest(name, known),
                )
                continue
            yield from _of_its_scaling(reference, name)


def _of_its_scaling(reference: Reference, name: str) -> Iterator[Problem]:
    scaling = load_workload(name).scaling
    if scaling is None:
        message = f"reference {reference.id}: workload {name} has no `scaling`"
        yield Problem(message, "a workload that says how it scales", (reference.id, "workloads"))
        return
    if reference.kind != scaling.kind:
        message = f"reference {reference.id}: {reference.kind} scaling, but workload {name} has {scaling.kind} scaling"
        yield Problem(message, f"kind: {scaling.kind}", (reference.id, "kind"), suggestion=scaling.kind)
    if reference.metric not in (None, scaling.metric):
        message = f"reference {reference.id}: {name} does not scale by `{clipped(str(reference.metric))}`"
        yield Problem(message, f"metric: {scaling.metric}", (reference.id, "metric"), suggestion=scaling.metric)


# Results of others for orientation, not for verdicts: earlier runs on the site first, then published results.


LEAST_OWN = 3  # studies that make a history of the site


class Measured(Strict):
    """The measured figures behind an efficiency: a speed-up, or two rates per rank."""

    speedup: float | None = Field(None, gt=0)
    value: float | None = Field(None, gt=0)
    baseline: float | None = Field(None, gt=0)
    unit: str | None = None


class Reference(Strict):
    """One published result. ``scale`` counts ``unit``; ``workloads`` and ``sites`` are hidl's names.

    ``metric``: the workloads' scaling metric; None: any.
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
    measured: Measured | None = None
    efficiency: float = Field(gt=0)
    usable_as: Literal["absolute", "shape", "context"]
    source: str

    @property
    def computed(self) -> float | None:
        """The efficiency from the measured figures; None if only the efficiency was published."""
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
            raise ValueError(f"the figures of {self.id} give {computed:.3f}, not {self.efficiency}")
        return self


@cache
def load_references() -> tuple[Reference, ...]:
    """Load ``recipes/references/scaling.yaml``; ``InvalidInput`` if invalid."""
    import yaml

    path = paths.shipped() / "recipes" / "references" / "scaling.yaml"
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        return tuple(TypeAdapter(list[Reference]).validate_python(document["references"]))
    except (OSError, KeyError, TypeError, yaml.YAMLError, ValidationError) as error:
        raise InvalidInput(f"the published results in {path} cannot be read: {error}") from error


def format_reference(
    workload: str, *, kind: Kind, metric: str, n: int, site: str, own: Sequence[float] = ()
) -> str | None:
    """Return a line about the efficiency that others reached at ``n`` times the smallest step; None if unknown.

    ``own``: the efficiencies of earlier studies of the same size on this site, which come first. Among published
    results, the same site counts more than the nearest scale.
    """
    if len(own) >= LEAST_OWN:
        found = f"{median(own):.3f} in the median of {len(own)} earlier studies ({min(own):.3f} to {max(own):.3f})"
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
    nearest = min(fitting, key=lambda one: (site not in one.sites, abs(math.log(one.scale / n))))
    where = f"{nearest.scale} {nearest.unit} ({nearest.platform}; {nearest.title}; {nearest.source})"
    return f"published: {nearest.efficiency:.3f} on {where}, for orientation"
