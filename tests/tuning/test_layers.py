"""The effective tuning: layers over presets, origins, and errors."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import ExitCode, InvalidInput
from hidl_cli.inputs.check import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.judge import Layer, Setting
from hidl_cli.tuning.layers import merge_layers

GDR = Library("gdr", "mvapich2-gdr", "2.3.7")


def tuned(library: Library, *layers: Layer, gpus: bool = False) -> dict[str, str]:
    return {setting.name: setting.value for setting in merge_layers(library, layers, gpus=gpus)}


def by_hand(**values: Scalar) -> Layer:
    return Layer("command line", values)


def refusal(family: Family, version: str | None = None, gpus: bool = False, **values: Scalar) -> Any:
    with pytest.raises(InvalidInput) as refused:
        merge_layers(Library("it", family, version), [by_hand(**values)], gpus=gpus)
    return refused.value


def test_presets_of_mvapich2_gdr_with_gpus() -> None:
    assert tuned(GDR, gpus=True) == {
        "MV2_USE_CUDA": "1",
        "MV2_CPU_BINDING_POLICY": "hybrid",
        "MV2_HYBRID_BINDING_POLICY": "spread",
        "MV2_USE_RDMA_CM": "0",
        "MV2_SUPPORT_DL": "1",
    }


def test_no_presets_without_gpus() -> None:
    assert tuned(GDR) == {}


@pytest.mark.parametrize("family", ["mvapich2", "mvapich", "mpich", "openmpi", "cray-mpich"])
def test_presets_apply_to_their_family_only(family: Family) -> None:
    assert tuned(Library("it", family), gpus=True) == {}


@pytest.mark.parametrize(("version", "set_"), [("4.0", False), ("4.1", True), ("5.0.0", True), (None, True)])
@pytest.mark.parametrize("compared", [False, True])
def test_mvapich_plus_tunes_itself_unless_times_are_compared(version: str | None, set_: bool, compared: bool) -> None:
    plus = Library("plus", "mvapich-plus", version)
    settings = merge_layers(plus, [], gpus=False, compared=compared)

    assert [(one.name, one.value) for one in settings] == (
        [("MPIR_CVAR_ENABLE_DYNAMIC_TUNING", str(int(not compared)))] if set_ else []
    )


def test_dynamic_tuning_that_is_asked_for_stays() -> None:
    plus = Library("plus", "mvapich-plus", "4.1")
    (setting,) = merge_layers(plus, [by_hand(MVP_ENABLE_DYNAMIC_TUNING=1)], gpus=False, compared=True)

    assert setting == Setting("MVP_ENABLE_DYNAMIC_TUNING", "1", "command line")


def test_the_origin_of_a_preset_is_its_source() -> None:
    (cuda,) = (setting for setting in merge_layers(GDR, [], gpus=True) if setting.name == "MV2_USE_CUDA")

    assert cuda.origin == "preset of mvapich2-gdr (MVAPICH2-GDR 2.3.7 user guide, section 13.1)"


@pytest.mark.parametrize(("version", "set_"), [("2.3.7", True), ("2.3.4", True), ("2.3.3", False), (None, True)])
def test_mv2_support_dl_is_a_preset_since_2_3_4(version: str | None, set_: bool) -> None:
    assert ("MV2_SUPPORT_DL" in tuned(Library("gdr", "mvapich2-gdr", version), gpus=True)) is set_


def test_a_preset_applies_only_to_versions_that_read_it() -> None:
    values = tuned(Library("gdr", "mvapich2-gdr", "2.2"), gpus=True)

    assert values == {"MV2_USE_CUDA": "1", "MV2_USE_RDMA_CM": "0"}


def test_amd_gpus_disable_the_cuda_preset() -> None:
    values = tuned(GDR, Layer("site x", {"MV2_USE_ROCM": 1}), gpus=True)

    assert values["MV2_USE_ROCM"] == "1"
    assert "MV2_USE_CUDA" not in values


def test_later_layers_override_earlier_ones() -> None:
    names = ("site s", "stack t", "workload w", "command line")
    layers = [Layer(origin, {"MV2_NUM_HCAS": number}) for number, origin in enumerate(names, start=1)]

    for upto in range(1, 5):
        expected = Setting("MV2_NUM_HCAS", str(upto), names[upto - 1])
        assert merge_layers(GDR, layers[:upto], gpus=False) == (expected,)


def test_a_layer_overrides_the_presets() -> None:
    settings = merge_layers(GDR, [by_hand(MV2_CPU_BINDING_POLICY="bunch")], gpus=True)

    assert Setting("MV2_CPU_BINDING_POLICY", "bunch", "command line") in settings


@pytest.mark.parametrize(
    ("by_user", "gone"),
    [
        ({"MV2_CPU_BINDING_POLICY": "scatter"}, {"MV2_HYBRID_BINDING_POLICY"}),
        ({"MV2_CPU_BINDING_POLICY": "SCATTER"}, {"MV2_HYBRID_BINDING_POLICY"}),
        ({"MV2_CPU_BINDING_POLICY": "hybrid"}, set()),
        ({"MV2_HYBRID_BINDING_POLICY": "bunch"}, set()),
        ({"MV2_CPU_MAPPING": "0:1"}, {"MV2_CPU_BINDING_POLICY", "MV2_HYBRID_BINDING_POLICY"}),
        ({"MV2_CPU_BINDING_LEVEL": "socket"}, {"MV2_CPU_BINDING_POLICY", "MV2_HYBRID_BINDING_POLICY"}),
        ({"MV2_ENABLE_AFFINITY": 0}, {"MV2_CPU_BINDING_POLICY", "MV2_HYBRID_BINDING_POLICY"}),
        ({"MV2_ENABLE_AFFINITY": 1}, set()),
        ({"MV2_USE_CUDA": 0}, {"MV2_SUPPORT_DL"}),
        ({"MV2_USE_ROCM": 1}, {"MV2_USE_CUDA"}),
        ({"MV2_USE_ROCM": 1, "MV2_USE_CUDA": 0}, set()),
        ({"MV2_USE_IWARP_MODE": 1}, {"MV2_USE_RDMA_CM"}),
    ],
)
def test_overriding_a_preset_drops_its_companions(by_user: dict[str, Scalar], gone: set[str]) -> None:
    before, after = tuned(GDR, gpus=True), tuned(GDR, by_hand(**by_user), gpus=True)

    assert before.keys() - after.keys() == gone
    assert after.keys() - before.keys() == by_user.keys() - before.keys()


def test_the_command_line_restores_companions_dropped_by_the_site() -> None:
    site = Layer("site s", {"MV2_CPU_BINDING_POLICY": "bunch"})

    assert "MV2_HYBRID_BINDING_POLICY" not in tuned(GDR, site, gpus=True)
    values = tuned(GDR, site, by_hand(MV2_CPU_BINDING_POLICY="hybrid"), gpus=True)
    assert values["MV2_HYBRID_BINDING_POLICY"] == "spread"


def test_a_variable_by_another_name_is_the_same_variable() -> None:
    plus = Library("plus", "mvapich-plus", "5.0.0")
    site, line = Layer("site s", {"MPIR_CVAR_ENABLE_GPU": 1}), by_hand(MVP_ENABLE_GPU=0)

    assert Setting("MVP_ENABLE_GPU", "0", "command line") in merge_layers(plus, [site, line], gpus=True)
    assert "MPIR_CVAR_ENABLE_GPU" not in tuned(plus, site, line, gpus=True)


def test_two_names_of_one_variable_in_one_layer_must_agree() -> None:
    error = refusal("mvapich-plus", MVP_ENABLE_GPU=1, MPIR_CVAR_ENABLE_GPU=0)

    assert [problem.message for problem in error.problems] == [
        "MVP_ENABLE_GPU and MPIR_CVAR_ENABLE_GPU are the same variable, with different values (command line)"
    ]


def test_a_name_with_an_open_prefix_is_passed_unchanged() -> None:
    values = tuned(
        Library("o", "openmpi", "5.0.11"), by_hand(OMPI_MCA_btl="self,sm", UCX_TLS="rc,cuda", NCCL_DEBUG="x")
    )

    assert values == {"OMPI_MCA_btl": "self,sm", "UCX_TLS": "rc,cuda", "NCCL_DEBUG": "x"}


def test_all_errors_of_all_layers_are_reported() -> None:
    site, line = Layer("site s", {"MV2_USE_CDUA": 1, "MV2_NUM_HCAS": 2}), by_hand(MV2_USE_CUDA="maybe")

    with pytest.raises(InvalidInput) as refused:
        merge_layers(GDR, [site, line], gpus=True)

    assert refused.value.exit_code is ExitCode.INVALID_INPUT
    assert [problem.message for problem in refused.value.problems] == [
        "unknown variable `MV2_USE_CDUA` (site s)",
        "MV2_USE_CUDA: `maybe` is not a switch (command line)",
    ]


def test_an_overridden_error_is_reported() -> None:
    with pytest.raises(InvalidInput, match=r"invalid tuning for mvapich2-gdr 2\.3\.7"):
        merge_layers(GDR, [Layer("site s", {"MV2_USE_CUDA": "x"}), by_hand(MV2_USE_CUDA=1)], gpus=False)


@pytest.mark.parametrize(
    ("family", "name", "meant"),
    [
        ("mvapich2-gdr", "MV2_USE_CDUA", "MV2_USE_CUDA"),
        ("mvapich-plus", "MVP_ENABLE_GPUS", "MVP_ENABLE_GPU"),
        ("mpich", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORTHM", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"),
        ("openmpi", "OMPI_mca_btl", "OMPI_MCA_btl"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(family: Family, name: str, meant: str) -> None:
    (problem,) = refusal(family, **{name: 1}).problems

    assert problem.message == f"unknown variable `{name}` (command line)"
    assert problem.suggestion == meant


@pytest.mark.parametrize(
    ("family", "name", "meant"),
    [
        # Under another prefix, as this family reads it.
        ("mvapich-plus", "MV2_ENABLE_GPU", "MPIR_CVAR_ENABLE_GPU"),
        ("mvapich2-gdr", "MVP_USE_CUDA", "MV2_USE_CUDA"),
        ("mvapich2-gdr", "USE_CUDA", "MV2_USE_CUDA"),
        ("mvapich2-gdr", "mpir_cvar_use_cuda", "MV2_USE_CUDA"),
        ("mpich", "MV2_ALLREDUCE_INTRA_ALGORITHM", "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"),
        # Under another prefix, as another family reads it: this one's counterpart.
        ("mvapich2-gdr", "MV2_ENABLE_GPU", "MV2_USE_CUDA"),
        ("mvapich2-gdr", "MV2_GPU_SUPPORT_ENABLED", "MV2_USE_CUDA"),
        ("cray-mpich", "USE_CUDA", "MPICH_GPU_SUPPORT_ENABLED"),
        ("mpich", "MVP_USE_ROCM", "MPIR_CVAR_ENABLE_GPU"),
    ],
)
def test_an_unknown_name_means_its_namesake_under_another_prefix(family: Family, name: str, meant: str) -> None:
    (problem,) = refusal(family, **{name: 1}).problems

    assert problem.message.startswith(f"unknown variable `{name}`")
    assert problem.suggestion == meant


def test_a_misspelled_name_of_another_family_gets_the_counterpart() -> None:
    (problem,) = refusal("mpich", MV2_USE_CDUA=1).problems

    assert "mpich does not read `MV2_USE_CUDA`" in problem.message
    assert problem.suggestion == "MPIR_CVAR_ENABLE_GPU"


@pytest.mark.parametrize(
    ("family", "version", "name", "value", "suggestion", "expected"),
    [
        ("mpich", "5.0.2", "MV2_USE_CUDA", 1, "MPIR_CVAR_ENABLE_GPU", "in an MPICH that is built for GPUs"),
        ("mvapich", "4.1", "MV2_USE_CUDA", 1, "MPIR_CVAR_ENABLE_GPU", "its counterpart for mvapich"),
        ("mvapich-plus", "5.0.0", "MV2_SHOW_ENV_INFO", 1, "MPIR_CVAR_DEBUG_SUMMARY", "its counterpart"),
        ("mvapich", "4.1", "MV2_BCAST_MIN_PROCS", 8, "MPIR_CVAR_BCAST_MIN_PROCS", "the same control variable"),
        ("mpich", "5.0.2", "MVP_ENABLE_GPU", 1, "MPIR_CVAR_ENABLE_GPU", "the same control variable"),
        ("openmpi", "5.0.11", "MV2_USE_CUDA", 1, None, "an Open MPI that is built for GPUs takes their buffers"),
        ("openmpi", "5.0.11", "MV2_CPU_BINDING_POLICY", "hybrid", None, "`mpirun --bind-to`"),
        ("mvapich2", "2.3.7", "MV2_USE_GDRCOPY", 1, None, "mvapich2 has no known counterpart"),
        ("mvapich2", "2.3.7", "MPIR_CVAR_ENABLE_GPU", 1, "MV2_USE_CUDA", "its counterpart for mvapich2"),
        ("mpich", "5.0.2", "OMPI_MCA_btl", "self", None, "mpich has no known counterpart"),
        ("mvapich2", "2.3.7", "UCX_TLS", "rc", None, "mvapich2 has no known counterpart"),
    ],
)
def test_a_variable_of_another_family_is_an_error_with_its_counterpart(  # noqa: PLR0917
    family: Family, version: str, name: str, value: Scalar, suggestion: str | None, expected: str
) -> None:
    (problem,) = refusal(family, version, **{name: value}).problems

    assert f"{family} does not read `{name}`" in problem.message
    assert problem.suggestion == suggestion
    assert expected in problem.expected


def test_a_variable_of_a_newer_version_is_an_error() -> None:
    (problem,) = refusal("mvapich2", "2.3.5", MV2_ENABLE_SHARP_REDUCE=1).problems

    assert problem.message == (
        "mvapich2 2.3.5 does not read `MV2_ENABLE_SHARP_REDUCE`, a variable of mvapich2 since 2.3.6 (command line)"
    )


def test_a_removed_variable_is_an_error_with_its_new_name() -> None:
    (problem,) = refusal("mpich", "5.0.2", MPIR_CVAR_CH4_OFI_EAGER_MAX_MSG_SIZE="64K").problems

    assert "a variable of mpich before 5.0.0" in problem.message
    assert problem.suggestion == "MPIR_CVAR_CH4_OFI_EAGER_THRESHOLD"


def test_an_unknown_version_accepts_every_variable_of_the_family() -> None:
    assert tuned(Library("m", "mvapich2"), by_hand(MV2_ENABLE_SHARP_REDUCE=1)) == {"MV2_ENABLE_SHARP_REDUCE": "1"}


@pytest.mark.parametrize("name", ["OMPI_MCA_a b", "UCX_A=B", "UCX_$(id)", "UCX_A;B", "OMPI_MCA_\n", "UCX_é", ""])
def test_an_invalid_name_is_an_error(name: str) -> None:
    (problem,) = refusal("openmpi", **{name: 1}).problems

    assert "invalid variable name" in problem.message


@given(st.sampled_from(["", "OMPI_MCA_", "UCX_", "NCCL_"]), st.text(), st.text())
def test_accepted_settings_have_valid_names_and_one_line(prefix: str, name: str, value: str) -> None:
    try:
        settings = merge_layers(Library("o", "openmpi"), [Layer("command line", {prefix + name: value})], gpus=False)
    except InvalidInput:
        return

    assert all(re.fullmatch(r"[A-Z_][A-Za-z0-9_]*=[^\n\r\0]*", f"{s.name}={s.value}") for s in settings)


def test_a_name_very_close_to_a_known_one_is_a_misspelling() -> None:
    (problem,) = refusal("cray-mpich", MPICH_GPU_SUPORT_ENABLED=1).problems

    assert problem.suggestion == "MPICH_GPU_SUPPORT_ENABLED"


def test_other_names_with_an_open_prefix_are_accepted() -> None:
    cray = Library("cray", "cray-mpich", "8.1.30")

    assert tuned(cray, by_hand(MPICH_ENV_DISPLAY=1, MPICH_OFI_NIC_POLICY="gpu")) == {
        "MPICH_ENV_DISPLAY": "1",
        "MPICH_OFI_NIC_POLICY": "GPU",
    }


@given(st.text())
def test_a_path_is_unchanged_or_an_error(value: str) -> None:
    unfit = not value.strip() or set(value) & set("\0\n\r\ufffd")
    layer = by_hand(MV2_GPUDIRECT_GDRCOPY_LIB=value)

    if unfit:
        with pytest.raises(InvalidInput):
            merge_layers(GDR, [layer], gpus=False)
    else:
        assert tuned(GDR, layer) == {"MV2_GPUDIRECT_GDRCOPY_LIB": value}
