"""LD_PRELOAD of libmpi.so against MV2_SUPPORT_DL: one of them, never both."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.inputs.fields import Scalar
from hidl_cli.mpi import Family, Library
from hidl_cli.tuning.layers import Layer, effective
from hidl_cli.tuning.preload import preloads

LIBMPI = "/opt/mvapich2/gdr/2.3.7/lib64/libmpi.so"


def decided(
    version: str | None,
    family: Family = "mvapich2-gdr",
    gpus: bool = True,
    environment: dict[str, str] | None = None,
    **values: Scalar,
) -> bool:
    library = Library("it", family, version, environment=environment or {})
    return preloads(library, effective(library, [Layer("command line", values)], gpus=gpus))


@pytest.mark.parametrize(("version", "preload"), [("2.3.7", False), ("2.3.4", False), ("2.3.3", True), (None, False)])
def test_the_version_decides(version: str | None, preload: bool) -> None:
    assert decided(version) is preload


def test_who_switches_the_support_off_gets_preloading() -> None:
    assert decided("2.3.7", MV2_SUPPORT_DL=0)


def test_who_sets_the_older_name_gets_no_preloading() -> None:
    assert not decided("2.3.3", MV2_SUPPORT_TENSOR_FLOW=1)


def test_without_gpus_nothing_is_preloaded() -> None:
    assert not decided("2.3.3", gpus=False)


@pytest.mark.parametrize("family", ["mvapich2", "mvapich-plus", "openmpi"])
def test_no_other_family_is_preloaded(family: Family) -> None:
    assert not decided("2.3.3", family=family)


def test_who_preloads_by_hand_gets_neither() -> None:
    library = Library("it", "mvapich2-gdr", "2.3.7")
    settings = effective(library, [Layer("command line", {"LD_PRELOAD": LIBMPI})], gpus=True)

    assert "MV2_SUPPORT_DL" not in {setting.name for setting in settings}
    assert not preloads(library, settings)


def test_a_site_that_preloads_gets_neither() -> None:
    assert not decided("2.3.7", environment={"LD_PRELOAD": LIBMPI})


def test_both_by_hand_are_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        decided("2.3.7", LD_PRELOAD=LIBMPI, MV2_SUPPORT_DL=1)

    assert [finding.message for finding in refused.value.findings] == [
        "MV2_SUPPORT_DL=1 (command line) and LD_PRELOAD of libmpi.so (command line) exclude each other"
    ]


def test_the_site_s_preloading_against_the_line_s_support_is_refused() -> None:
    with pytest.raises(InvalidInput) as refused:
        decided("2.3.7", environment={"LD_PRELOAD": f"/x/liba.so:{LIBMPI}"}, MV2_SUPPORT_DL=1)

    assert "the site's environment for this library" in refused.value.findings[0].message


def test_another_library_may_be_preloaded() -> None:
    assert not decided("2.3.7", LD_PRELOAD="/usr/lib/libjemalloc.so.2", MV2_SUPPORT_DL=1)
