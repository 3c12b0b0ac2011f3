"""jsrun: resource sets from the placement, and MVAPICH2 in Spectrum MPI's place."""

from __future__ import annotations

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.launchers.contract import Gpus
from hidl_cli.launch.launchers.jsrun import Jsrun
from tests.launch.launchers.asking import PROGRAM, placement, request

PACKED = ("-d", "packed", "-b", "packed:8")


def test_with_gpus_each_host_is_one_resource_set() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", gpus=Gpus(4, 1)))
    assert launch.argv == ("jsrun", "-n", "2", "-r", "1", "-a", "4", "-c", "32", "-g", "4", *PACKED, *PROGRAM)


def test_without_gpus_each_rank_is_a_resource_set() -> None:
    launch = Jsrun().launch(request("spectrum-mpi"))
    assert launch.argv == ("jsrun", "-n", "8", "-r", "4", "-a", "1", "-c", "8", "-g", "0", *PACKED, *PROGRAM)


def test_each_rank_is_a_resource_set_if_the_last_host_is_not_full() -> None:
    launch = Jsrun().launch(request("spectrum-mpi", placement(ranks=7), gpus=Gpus(4, 1)))
    assert launch.argv[1:11] == ("-n", "7", "-r", "4", "-a", "1", "-c", "8", "-g", "1")


@pytest.mark.parametrize("gpus", range(9))
@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("ranks", range(1, 43))
def test_resource_sets_never_need_more_than_a_host_has(ranks: int, threads: int, gpus: int) -> None:
    cores = 42 * threads
    asked = request("spectrum-mpi", placement(3, ranks, threads=threads), gpus=Gpus.of(gpus, ranks))
    words = Jsrun().launch(asked).argv
    option = {name: int(words[words.index(name) + 1]) for name in ("-n", "-r", "-a", "-c", "-g")}
    assert option["-r"] * option["-c"] <= cores
    assert option["-r"] * option["-g"] <= gpus
    assert option["-n"] * option["-a"] == 3 * ranks
    assert option["-n"] == 3 * option["-r"]
    assert option["-c"] == option["-a"] * threads
    assert (option["-g"] > 0) == (gpus > 0)


def test_gpus_are_not_shared_if_the_last_host_is_not_full() -> None:
    with pytest.raises(InvalidInput, match="cannot share 6 GPUs of a node among 83 ranks on 2 nodes"):
        Jsrun().launch(request("spectrum-mpi", placement(2, 42, threads=1, ranks=83), gpus=Gpus.of(6, 42)))


def test_ranks_that_share_cores_are_not_bound() -> None:
    assert Jsrun().launch(request("spectrum-mpi", placement(bind=False))).argv[13:15] == ("-b", "none")


def test_arguments_of_the_site_make_spectrum_mpi_gpu_aware() -> None:
    mpi = {"launcher_arguments": {"jsrun": ("--smpiargs=-gpu",)}}
    assert Jsrun().launch(request("spectrum-mpi", mpi=mpi, gpus=Gpus(4, 1))).argv[15] == "--smpiargs=-gpu"


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
