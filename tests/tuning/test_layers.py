"""The effective tuning: layers over presets, where each value comes from, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import ExitCode, InvalidInput
from hidl_cli.inputs.fields import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.layers import Layer, Setting, effective

GDR = Library("gdr", "mvapich2-gdr", "2.3.7")


def tuned(library: Library, *layers: Layer, gpus: bool = False) -> dict[str, str]:
    return {setting.name: setting.value for setting in effective(library, layers, gpus=gpus)}


def by_hand(**values: Scalar) -> Layer:
    return Layer("command line", values)


def refusal(family: Family, version: str | None = None, gpus: bool = False, **values: Scalar) -> Any:
    with pytest.raises(InvalidInput) as refused:
        effective(Library("it", family, version), [by_hand(**values)], gpus=gpus)
    return refused.value


def test_the_presets_of_mvapich2_gdr_on_gpus() -> None:
    assert tuned(GDR, gpus=True) == {
        "MV2_USE_CUDA": "1",
        "MV2_CPU_BINDING_POLICY": "hybrid",
        "MV2_HYBRID_BINDING_POLICY": "spread",
        "MV2_USE_RDMA_CM": "0",
        "MV2_SUPPORT_DL": "1",
    }


def test_without_gpus_there_is_no_preset() -> None:
    assert tuned(GDR) == {}


@pytest.mark.parametrize("family", ["mvapich2", "mvapich-plus", "mpich", "openmpi", "cray-mpich"])
def test_no_family_gets_the_presets_of_another(family: Family) -> None:
    assert tuned(Library("it", family), gpus=True) == {}


def test_a_preset_names_its_source() -> None:
    (cuda,) = (setting for setting in effective(GDR, [], gpus=True) if setting.name == "MV2_USE_CUDA")

    assert cuda.origin == "preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)"


@pytest.mark.parametrize(("version", "set_"), [("2.3.7", True), ("2.3.4", True), ("2.3.3", False), (None, True)])
def test_deep_learning_support_is_a_preset_from_2_3_4_on(version: str | None, set_: bool) -> None:
    assert ("MV2_SUPPORT_DL" in tuned(Library("gdr", "mvapich2-gdr", version), gpus=True)) is set_


def test_a_version_that_does_not_read_a_preset_does_not_get_it() -> None:
    values = tuned(Library("gdr", "mvapich2-gdr", "2.2"), gpus=True)

    assert values == {"MV2_USE_CUDA": "1", "MV2_USE_RDMA_CM": "0"}


def test_gpus_of_amd_are_no_gpus_of_nvidia() -> None:
    values = tuned(GDR, Layer("site x", {"MV2_USE_ROCM": 1}), gpus=True)

    assert values["MV2_USE_ROCM"] == "1"
    assert "MV2_USE_CUDA" not in values


def test_each_layer_lies_over_the_one_before() -> None:
    names = ("site s", "stack t", "workload w", "command line")
    layers = [Layer(origin, {"MV2_NUM_HCAS": number}) for number, origin in enumerate(names, start=1)]

    for upto in range(1, 5):
        expected = Setting("MV2_NUM_HCAS", str(upto), names[upto - 1])
        assert effective(GDR, layers[:upto], gpus=False) == (expected,)


def test_a_layer_lies_over_the_presets() -> None:
    settings = effective(GDR, [by_hand(MV2_CPU_BINDING_POLICY="bunch")], gpus=True)

    assert Setting("MV2_CPU_BINDING_POLICY", "bunch", "command line") in settings


def test_a_variable_by_another_name_is_the_same_variable() -> None:
    plus = Library("plus", "mvapich-plus", "5.0.0")
    site, line = Layer("site s", {"MPIR_CVAR_ENABLE_GPU": 1}), by_hand(MVP_ENABLE_GPU=0)

    assert effective(plus, [site, line], gpus=True) == (Setting("MVP_ENABLE_GPU", "0", "command line"),)


def test_two_names_of_one_variable_in_one_layer_must_agree() -> None:
    error = refusal("mvapich-plus", MVP_ENABLE_GPU=1, MPIR_CVAR_ENABLE_GPU=0)

    assert [finding.message for finding in error.findings] == [
        "MVP_ENABLE_GPU and MPIR_CVAR_ENABLE_GPU are one variable, with two values (command line)"
    ]


def test_what_is_known_by_its_prefix_is_taken_as_it_is() -> None:
    values = tuned(
        Library("o", "openmpi", "5.0.11"), by_hand(OMPI_MCA_btl="self,sm", UCX_TLS="rc,cuda", NCCL_DEBUG="x")
    )

    assert values == {"OMPI_MCA_btl": "self,sm", "UCX_TLS": "rc,cuda", "NCCL_DEBUG": "x"}


def test_all_faults_of_all_layers_come_at_once() -> None:
    site, line = Layer("site s", {"MV2_USE_CDUA": 1, "MV2_NUM_HCAS": 2}), by_hand(MV2_USE_CUDA="maybe")

    with pytest.raises(InvalidInput) as refused:
        effective(GDR, [site, line], gpus=True)

    assert refused.value.exit_code is ExitCode.INVALID_INPUT
    assert [finding.message for finding in refused.value.findings] == [
        "there is no variable called `MV2_USE_CDUA` (site s)",
        "MV2_USE_CUDA: `maybe` is not a switch (command line)",
    ]


def test_a_fault_that_a_later_layer_hides_is_told_too() -> None:
    with pytest.raises(InvalidInput, match=r"does not fit mvapich2-gdr 2\.3\.7"):
        effective(GDR, [Layer("site s", {"MV2_USE_CUDA": "x"}), by_hand(MV2_USE_CUDA=1)], gpus=False)


@pytest.mark.parametrize(
    ("family", "name", "meant"),
    [
        ("mvapich2-gdr", "MV2_USE_CDUA", "MV2_USE_CUDA"),
        ("mvapich-plus", "MVP_ENABLE_GPUS", "MVP_ENABLE_GPU"),
        ("mpich", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORTHM", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"),
        ("openmpi", "OMPI_mca_btl", "OMPI_MCA_btl"),
    ],
)
def test_a_misspelled_name_is_told_the_nearest(family: Family, name: str, meant: str) -> None:
    (finding,) = refusal(family, **{name: 1}).findings

    assert finding.message == f"there is no variable called `{name}` (command line)"
    assert finding.suggestion == meant


def test_a_misspelled_name_of_another_family_is_told_the_counterpart() -> None:
    (finding,) = refusal("mpich", MV2_USE_CDUA=1).findings

    assert "mpich does not read `MV2_USE_CUDA`" in finding.message
    assert finding.suggestion == "MPIR_CVAR_ENABLE_GPU"


@pytest.mark.parametrize(
    ("family", "version", "name", "value", "suggestion", "expected"),
    [
        ("mpich", "5.0.2", "MV2_USE_CUDA", 1, "MPIR_CVAR_ENABLE_GPU", "in an MPICH that is built for GPUs"),
        ("mvapich", "4.1", "MV2_USE_CUDA", 1, "MPIR_CVAR_ENABLE_GPU", "its counterpart on mvapich"),
        ("mvapich-plus", "5.0.0", "MV2_SHOW_ENV_INFO", 1, "MPIR_CVAR_DEBUG_SUMMARY", "its counterpart"),
        ("mvapich", "4.1", "MV2_BCAST_MIN_PROCS", 8, "MPIR_CVAR_BCAST_MIN_PROCS", "the same control variable"),
        ("mpich", "5.0.2", "MVP_ENABLE_GPU", 1, "MPIR_CVAR_ENABLE_GPU", "the same control variable"),
        ("openmpi", "5.0.11", "MV2_USE_CUDA", 1, None, "an Open MPI that is built for GPUs takes their buffers"),
        ("openmpi", "5.0.11", "MV2_CPU_BINDING_POLICY", "hybrid", None, "`mpirun --bind-to`"),
        ("mvapich2", "2.3.7", "MV2_USE_GDRCOPY", 1, None, "no counterpart on mvapich2 is known"),
        ("mvapich2", "2.3.7", "MPIR_CVAR_ENABLE_GPU", 1, "MV2_USE_CUDA", "its counterpart on mvapich2"),
        ("mpich", "5.0.2", "OMPI_MCA_btl", "self", None, "no counterpart on mpich is known"),
        ("mvapich2", "2.3.7", "UCX_TLS", "rc", None, "no counterpart on mvapich2 is known"),
    ],
)
def test_a_variable_of_another_family_is_refused_with_its_counterpart(  # noqa: PLR0917
    family: Family, version: str, name: str, value: Scalar, suggestion: str | None, expected: str
) -> None:
    (finding,) = refusal(family, version, **{name: value}).findings

    assert f"{family} does not read `{name}`" in finding.message
    assert finding.suggestion == suggestion
    assert expected in finding.expected


def test_a_variable_of_a_newer_version_is_refused() -> None:
    (finding,) = refusal("mvapich2", "2.3.5", MV2_ENABLE_SHARP_REDUCE=1).findings

    assert finding.message == (
        "mvapich2 2.3.5 does not read `MV2_ENABLE_SHARP_REDUCE`; it is read by mvapich2 from 2.3.6 on (command line)"
    )


def test_a_variable_that_a_newer_version_dropped_is_refused_with_its_new_name() -> None:
    (finding,) = refusal("mpich", "5.0.2", MPIR_CVAR_CH4_OFI_EAGER_MAX_MSG_SIZE="64K").findings

    assert "it is read by mpich before 5.0.0" in finding.message
    assert finding.suggestion == "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD"


def test_where_the_version_is_unknown_any_variable_of_the_family_is_taken() -> None:
    assert tuned(Library("m", "mvapich2"), by_hand(MV2_ENABLE_SHARP_REDUCE=1)) == {"MV2_ENABLE_SHARP_REDUCE": "1"}


@pytest.mark.parametrize("name", ["OMPI_MCA_a b", "UCX_A=B", "UCX_$(id)", "UCX_A;B", "OMPI_MCA_\n", "UCX_é", ""])
def test_what_is_no_name_of_a_variable_is_refused(name: str) -> None:
    (finding,) = refusal("openmpi", **{name: 1}).findings

    assert "is no name of a variable" in finding.message


@given(st.sampled_from(["", "OMPI_MCA_", "UCX_", "NCCL_"]), st.text(), st.text())
def test_only_names_of_variables_with_values_on_one_line_are_taken(prefix: str, name: str, value: str) -> None:
    try:
        settings = effective(Library("o", "openmpi"), [Layer("command line", {prefix + name: value})], gpus=False)
    except InvalidInput:
        return

    assert all(re.fullmatch(r"[A-Z_][A-Za-z0-9_]*=[^\n\r\0]*", f"{s.name}={s.value}") for s in settings)


def test_a_name_that_is_all_but_a_known_one_is_a_misspelling() -> None:
    (finding,) = refusal("cray-mpich", MPICH_GPU_SUPORT_ENABLED=1).findings

    assert finding.suggestion == "MPICH_GPU_SUPPORT_ENABLED"


def test_other_names_of_a_known_prefix_are_taken() -> None:
    cray = Library("cray", "cray-mpich", "8.1.30")

    assert tuned(cray, by_hand(MPICH_ENV_DISPLAY=1, MPICH_OFI_NIC_POLICY="gpu")) == {
        "MPICH_ENV_DISPLAY": "1",
        "MPICH_OFI_NIC_POLICY": "GPU",
    }


@given(st.text())
def test_a_path_arrives_as_it_is_or_is_refused(value: str) -> None:
    unfit = not value.strip() or set(value) & set("\0\n\r\ufffd")
    layer = by_hand(MV2_GPUDIRECT_GDRCOPY_LIB=value)

    if unfit:
        with pytest.raises(InvalidInput):
            effective(GDR, [layer], gpus=False)
    else:
        assert tuned(GDR, layer) == {"MV2_GPUDIRECT_GDRCOPY_LIB": value}
