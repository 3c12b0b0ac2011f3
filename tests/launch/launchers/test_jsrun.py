"""jsrun: resource sets from the placement, and MVAPICH2 in Spectrum MPI's place."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.jsrun import Jsrun
from tests.launch.launchers.asking import PROGRAM, placement, request

PACKED = ("-d", "packed", "-b", "packed:8")


def test_with_gpus_each_host_is_one_resource_set() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", gpus_per_rank=1))
    assert launch.argv == ("jsrun", "-n", "2", "-r", "1", "-a", "4", "-c", "32", "-g", "4", *PACKED, *PROGRAM)


def test_without_gpus_each_rank_is_a_resource_set() -> None:
    launch = Jsrun().launch(request("spectrum-mpi"))
    assert launch.argv == ("jsrun", "-n", "8", "-r", "4", "-a", "1", "-c", "8", "-g", "0", *PACKED, *PROGRAM)


def test_each_rank_is_a_resource_set_if_the_last_host_is_not_full() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", placement(ranks=7), gpus_per_rank=1))
    assert launch.argv[1:11] == ("-n", "7", "-r", "4", "-a", "1", "-c", "8", "-g", "1")


def test_ranks_that_share_cores_are_not_bound() -> None:
    assert Jsrun().launch(request("spectrum-mpi", placement(bind=False))).argv[13:15] == ("-b", "none")


def test_arguments_of_the_site_make_spectrum_mpi_gpu_aware() -> None:
    mpi = {"launcher_arguments": {"jsrun": ("--smpiargs=-gpu",)}}
    assert Jsrun().launch(request("spectrum-mpi", mpi=mpi, gpus_per_rank=1)).argv[15] == "--smpiargs=-gpu"


def test_mvapich2_is_preloaded_instead_of_spectrum_mpi() -> None:
    launch = Jsrun().launch(request("mvapich2-gdr"))
    assert launch.preloaded_by == "OMPI_LD_PRELOAD_PREPEND"


def test_a_preload_of_the_site_wins() -> None:
    mpi = {"prefix": None, "environment": {"OMPI_LD_PRELOAD_PREPEND": "/x/libmpi.so"}}
    assert Jsrun().launch(request("mvapich2-gdr", mpi=mpi)).preloaded_by is None


def test_mvapich2_without_prefix_or_preload_is_refused() -> None:
    with pytest.raises(InvalidInput, match="OMPI_LD_PRELOAD_PREPEND") as refused:
        Jsrun().launch(request("mvapich2-gdr", mpi={"prefix": None}))
    assert refused.value.hint is not None
    assert "`prefix`" in refused.value.hint


def test_spectrum_mpi_needs_no_preload() -> None:
    launch = Jsrun().launch(request("spectrum-mpi"))
    assert (launch.environment, launch.preloaded_by) == ({}, None)
