"""Check that published results name existing workloads and their scaling metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hidl_cli.errors import Problem
from hidl_cli.inputs.faults import nearest
from hidl_cli.inputs.overlay import list_all
from hidl_cli.inputs.problems import clipped
from hidl_cli.plan.load import load_workload
from hidl_cli.store.references.published import Reference


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
