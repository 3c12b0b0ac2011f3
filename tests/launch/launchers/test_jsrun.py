"""jsrun: resource sets from the placement, and MVAPICH2 in Spectrum MPI's place."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.jsrun import Jsrun
from tests.launch.launchers.asking import PROGRAM, placement, request

PACKED = ("-d", "packed", "-b", "packed:8")


def test_with_gpus_a_host_is_one_resource_set() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", gpus_per_rank=1))
    assert launch.argv == ("jsrun", "-n", "2", "-r", "1", "-a", "4", "-c", "32", "-g", "4", *PACKED, *PROGRAM)


def test_without_each_rank_has_its_own() -> None:
    launch = Jsrun().launch(request("spectrum-mpi"))
    assert launch.argv == ("jsrun", "-n", "8", "-r", "4", "-a", "1", "-c", "8", "-g", "0", *PACKED, *PROGRAM)


def test_and_where_the_last_host_is_not_full() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", placement(ranks=7), gpus_per_rank=1))
    assert launch.argv[1:11] == ("-n", "7", "-r", "4", "-a", "1", "-c", "8", "-g", "1")


def test_a_host_with_too_few_cores_does_not_bind() -> None:
    assert Jsrun().launch(request("spectrum-mpi", placement(bind=False))).argv[13:15] == ("-b", "none")


def test_spectrum_mpi_is_told_of_gpus_by_the_site() -> None:
    mpi = {"launcher_arguments": {"jsrun": ("--smpiargs=-gpu",)}}
    assert Jsrun().launch(request("spectrum-mpi", mpi=mpi, gpus_per_rank=1)).argv[15] == "--smpiargs=-gpu"


def test_mvapich2_takes_the_place_of_the_library_that_jsrun_preloads() -> None:
    launch = Jsrun().launch(request("mvapich2-gdr"))
    assert launch.environment["OMPI_LD_PRELOAD_PREPEND"] == "/opt/mpi/lib/libmpi.so"


def test_where_the_site_says_so_itself_that_holds() -> None:
    mpi = {"prefix": None, "environment": {"OMPI_LD_PRELOAD_PREPEND": "/x/libmpi.so"}}
    assert "OMPI_LD_PRELOAD_PREPEND" not in Jsrun().launch(request("mvapich2-gdr", mpi=mpi)).environment


def test_where_nobody_does_it_is_refused() -> None:
    with pytest.raises(InvalidInput, match="OMPI_LD_PRELOAD_PREPEND") as refused:
        Jsrun().launch(request("mvapich2-gdr", mpi={"prefix": None}))
    assert refused.value.hint is not None
    assert "`prefix`" in refused.value.hint


def test_spectrum_mpi_needs_no_preload() -> None:
    assert Jsrun().launch(request("spectrum-mpi")).environment == {}
