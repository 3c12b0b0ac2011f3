"""LD_PRELOAD of libmpi.so against MV2_SUPPORT_DL: one of them, never both."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.check import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.judge import Layer
from hidl_cli.tuning.layers import merge_layers, preloads

LIBMPI = "/opt/mvapich2/gdr/2.3.7/lib64/libmpi.so"


def decided(
    version: str | None,
    family: Family = "mvapich2-gdr",
    gpus: bool = True,
    environment: dict[str, str] | None = None,
    **values: Scalar,
) -> bool:
    library = Library("it", family, version, environment=environment or {})
    return preloads(library, merge_layers(library, [Layer("command line", values)], gpus=gpus))


@pytest.mark.parametrize(("version", "preload"), [("2.3.7", False), ("2.3.4", False), ("2.3.3", True), (None, False)])
def test_preloading_depends_on_the_version(version: str | None, preload: bool) -> None:
    assert decided(version) is preload


def test_mv2_support_dl_0_preloads() -> None:
    assert decided("2.3.7", MV2_SUPPORT_DL=0)


def test_the_older_name_of_mv2_support_dl_disables_preloading() -> None:
    assert not decided("2.3.3", MV2_SUPPORT_TENSOR_FLOW=1)


def test_without_gpus_nothing_is_preloaded() -> None:
    assert not decided("2.3.3", gpus=False)


@pytest.mark.parametrize("family", ["mvapich2", "mvapich-plus", "openmpi"])
def test_only_mvapich2_gdr_is_preloaded(family: Family) -> None:
    assert not decided("2.3.3", family=family)


def test_ld_preload_of_the_user_disables_both_remedies() -> None:
    library = Library("it", "mvapich2-gdr", "2.3.7")
    settings = merge_layers(library, [Layer("command line", {"LD_PRELOAD": LIBMPI})], gpus=True)

    assert "MV2_SUPPORT_DL" not in {setting.name for setting in settings}
    assert not preloads(library, settings)


def test_ld_preload_of_the_site_disables_both_remedies() -> None:
    assert not decided("2.3.7", environment={"LD_PRELOAD": LIBMPI})


def test_both_remedies_are_an_error() -> None:
    with pytest.raises(InvalidInput) as refused:
        decided("2.3.7", LD_PRELOAD=LIBMPI, MV2_SUPPORT_DL=1)

    assert [problem.message for problem in refused.value.problems] == [
        "MV2_SUPPORT_DL=1 (command line) and preloading libmpi.so with LD_PRELOAD (command line) cannot be combined"
    ]


def test_ld_preload_of_the_site_with_mv2_support_dl_is_an_error() -> None:
    with pytest.raises(InvalidInput) as refused:
        decided("2.3.7", environment={"LD_PRELOAD": f"/x/liba.so:{LIBMPI}"}, MV2_SUPPORT_DL=1)

    assert "the site's environment for this library" in refused.value.problems[0].message


def test_ld_preload_of_another_library_is_valid() -> None:
    assert not decided("2.3.7", LD_PRELOAD="/usr/lib/libjemalloc.so.2", MV2_SUPPORT_DL=1)
