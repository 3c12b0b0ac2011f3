"""Published results name what there is, and each of them appears in a study of its size."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from hidl_cli.analysis.scaling import Observation, judge
from hidl_cli.plan.checks import load_workload
from hidl_cli.report.tables import scaling_table
from hidl_cli.store.references import Reference, find_unmatched, format_reference, load_references
from tests.conftest import Hidl

ROUNDS = [Observation(n, r, n * (10 + r / 100)) for n in (1, 2) for r in range(5)]
STUDY = judge(kind="weak", target=0.7, metric="m", unit="images/s", step_unit="nodes", observations=ROUNDS)


def of(**changed: object) -> Reference:
    return Reference.model_validate(load_references()[0].model_dump() | {"id": "one"} | changed)


def test_every_published_reference_names_what_there_is() -> None:
    assert list(find_unmatched(load_references())) == []


@pytest.mark.parametrize(
    ("changed", "message", "suggestion"),
    [
        ({"workloads": ["hyparflow-resne"]}, "unknown workload `hyparflow-resne`", "hyparflow-resnet"),
        ({"workloads": ["resnet50", "x"]}, "unknown workload `x`", None),
        ({"workloads": ["mpi-sanity"]}, "workload mpi-sanity has no `scaling`", None),
        ({"kind": "strong"}, "strong scaling, but workload resnet50 has weak scaling", "weak"),
        ({"metric": "images"}, "`images` is not the scaling metric of resnet50", "images_per_second"),
    ],
)
def test_what_does_not_exist_is_a_finding(changed: dict[str, object], message: str, suggestion: str | None) -> None:
    (finding,) = find_unmatched([of(**changed)])

    assert finding.message == f"reference one: {message}"
    assert finding.suggestion == suggestion


@pytest.mark.parametrize("reference", load_references(), ids=lambda reference: str(reference.id))
def test_each_appears_below_the_table_of_a_study_of_its_size(reference: Reference) -> None:
    for name in reference.workloads:
        scaling = load_workload(name).scaling
        assert scaling is not None
        site = (reference.sites or ["local"])[0]
        line = format_reference(name, kind=scaling.kind, metric=scaling.metric, n=reference.scale, site=site)
        shown = Console(file=StringIO(), width=400)
        shown.print(scaling_table(replace(STUDY, reference=line)))
        assert isinstance(shown.file, StringIO)
        found = f"{reference.efficiency:.3f} on {reference.scale} {reference.unit} ({reference.platform}; "
        begins = f"published, for comparison: {found}"
        assert begins.strip() in " ".join(shown.file.getvalue().split())


def test_the_list_of_workloads_has_nothing_to_say_of_the_shipped_ones(hidl: Hidl) -> None:
    done = hidl("workload", "list")

    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_of_workloads_says_which_reference_a_workload_of_the_users_own_hides(hidl: Hidl) -> None:
    own = Path(hidl.environment["XDG_CONFIG_HOME"], "hidl", "workloads", "knn.yaml")
    own.parent.mkdir(parents=True)
    own.write_text(
        "name: knn\ntitle: mine\nprogram: {command: [mine]}\nstacks: [{stack: mpi}]\n"
        "metrics: {rate: {unit: 1/s, better: higher}}\nscaling: {metric: rate, kind: weak, target: 0.7}\n"
    )

    done = hidl("workload", "list")
    assert done.returncode == 0
    assert "reference omb-py-224: strong scaling, but workload knn has weak scaling" in done.stderr
