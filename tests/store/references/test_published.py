from __future__ import annotations

import pytest
from pydantic import ValidationError

from hidl_cli.plan.checks import load_workload
from hidl_cli.store.references import Reference, format_reference, load_figures, load_references, published_figures

FIGURES = {
    "horovod-torch-v100-2": 0.947,  # 316.4 / 334.0
    "hyparflow-frontera-256": 0.988,  # 253 / 256
    "hyparflow-frontera-512": 0.939,  # 481 / 512
    "hyparflow-stampede2-128": 0.859,  # 110 / 128
    "omb-py-224": 0.473,  # 106 / 224
}


@pytest.mark.parametrize(("name", "efficiency"), FIGURES.items())
def test_published_efficiencies_are_those_of_the_published_figures(name: str, efficiency: float) -> None:
    (reference,) = [one for one in load_references() if one.id == name]
    assert reference.computed == pytest.approx(efficiency, abs=0.001)
    assert reference.efficiency == efficiency


def test_one_that_contradicts_its_figures_is_refused() -> None:
    values = load_references()[0].model_dump() | {"efficiency": 0.5}
    with pytest.raises(ValidationError, match=r"the measurements of horovod-torch-v100-2 give 0\.947, not 0\.5"):
        Reference.model_validate(values)


def test_every_one_is_distinguished_and_has_a_source() -> None:
    assert len({one.id for one in load_references()}) == len(load_references())
    assert all(one.source for one in load_references())


def test_the_nearest_scale_is_chosen() -> None:
    line = format_reference("resnet50", kind="weak", metric="images_per_second", n=4, site="local")
    assert line is not None
    assert line.startswith("published, for comparison: 0.947 on 2 GPUs (2 nodes with one V100 each")


def test_the_same_site_counts_more_than_the_scale() -> None:
    line = format_reference("hyparflow-resnet", kind="weak", metric="images_per_second", n=128, site="frontera")
    assert line is not None
    assert line.startswith("published, for comparison: 0.988 on 256 nodes (Frontera")


def test_the_sites_own_history_comes_first() -> None:
    line = format_reference(
        "resnet50", kind="weak", metric="images_per_second", n=4, site="local", own=[0.9, 0.8, 0.85]
    )
    assert line == "here before: a median of 0.850 in 3 earlier studies (0.800 to 0.900)"


@pytest.mark.parametrize(("workload", "kind"), [("unknown", "weak"), ("resnet50", "strong")])
def test_where_nothing_is_known_nothing_is_said(workload: str, kind: str) -> None:
    assert format_reference(workload, kind=kind, metric="images_per_second", n=4, site="local") is None  # type: ignore[arg-type]


def test_a_reference_of_another_metric_is_not_shown() -> None:
    assert format_reference("resnet50", kind="weak", metric="step_time", n=4, site="local") is None


def test_every_figure_names_workloads_and_values_that_exist() -> None:
    assert len({figure.id for figure in load_figures()}) == len(load_figures())
    for figure in load_figures():
        for name in figure.workloads:
            parameters = load_workload(name).parameters
            for parameter, values in figure.when.items():
                assert set(values) <= set(map(str, parameters[parameter].choices)), (figure.id, name, parameter)


def _titles(workload: str, *, is_study: bool = False, **parameters: str) -> list[str]:
    return [each["title"] for each in published_figures(workload, parameters, is_study=is_study)]


def test_figures_apply_to_the_parameters_that_they_were_measured_with() -> None:
    assert _titles("dask-merge", protocol="tcp") == []
    assert len(_titles("dask-merge", protocol="mpi")) == 4
    assert _titles("osu-allreduce", places="H-H") == []
    assert not [title for title in _titles("hyparflow-vgg", schedule="1f1b") if "GEMS" in title]
    assert len(_titles("hyparflow-vgg", schedule="gems", mode="model")) == 3


def test_published_efficiencies_apply_to_studies() -> None:
    assert len(_titles("resnet50", is_study=True)) == len(_titles("resnet50")) + 3
    assert _titles("knn") == []


@pytest.mark.parametrize(
    ("workload", "parameters", "figure", "scale"),
    [
        ("resnet50", {}, "3 s per epoch of ImageNet (1,281,167 images)", "1,536 GPUs on 256 nodes"),
        ("resnet50", {"backend": "horovod"}, "1.8 times as fast as native gRPC", "not stated in the abstract"),
        ("hyparflow-resnet", {"schedule": "gems"}, "97.32 % scaling efficiency", "1,024 GPUs"),
        ("osu-bcast", {"places": "D-D"}, "16.6 times as fast as NCCL's", "between nodes"),
    ],
)
def test_figures_are_those_of_the_publications(
    workload: str, parameters: dict[str, str], figure: str, scale: str
) -> None:
    assert (figure, scale) in [
        (each["figure"], each["scale"]) for each in published_figures(workload, parameters, is_study=False)
    ]
