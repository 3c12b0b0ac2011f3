"""Rules about tuning variables, on recorded facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.doctor.examine import PlannedJob
from hidl_cli.doctor.rules import tuning
from hidl_cli.doctor.rules.tuning import RULES, Tuning
from hidl_cli.mpi import Library
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host

MPICH = PlannedJob(Library("mpi", "mpich", version="5.0.2", prefix="/stacks/mpi/1"), "mpiexec")
GDR = PlannedJob(Library("gdr", "mvapich2-gdr", version="2.3.7", prefix="/opt/gdr"), "mpirun_rsh")
OPEN = PlannedJob(Library("openmpi", "openmpi", version="5.0.11", prefix="/stacks/openmpi/1"), "mpirun")
LIBMPI = {"LD_PRELOAD": "/opt/gdr/lib/libmpi.so"}
ON = {"MV2_USE_CUDA": "1"}
OFF = {"MV2_USE_CUDA": "0"}
UCX = {"MPIR_CVAR_CH4_NETMOD": "ucx"}
PLANNED = replace(GDR, planned=True)
BOTH = Tuning(replace(GDR, configured={"MV2_SUPPORT_DL": "1"}, inherited=LIBMPI))
NO_GDRCOPY = Tuning(GDR, missing={"MV2_GPUDIRECT_GDRCOPY_LIB": ("/opt/x.so",)})
ADAPTERS = ("mlx5_0", "mlx5_1")


def shell(job: PlannedJob, **variables: str) -> Tuning:
    """The job, and what the user's shell carries on to its ranks."""
    return Tuning(replace(job, inherited=variables))


def naming(on_this_host: bool, adapters: tuple[str, ...] | None, **variables: str) -> Tuning:
    return replace(shell(GDR, **variables), adapters=adapters, interfaces=("lo", "ib0"), on_this_host=on_this_host)


CASES: list[Case] = [
    ("HD021", "MVAPICH2's on MPICH", shell(MPICH, MV2_IBA_HCA="mlx5_0"), "warning"),
    ("HD021", "MVAPICH2's on Open MPI", shell(OPEN, MV2_USE_CUDA="1"), "warning"),
    ("HD021", "a misspelt name", shell(GDR, MV2_USE_CUDAA="1"), "warning"),
    ("HD021", "MPICH's on Open MPI", shell(OPEN, MPIR_CVAR_CH4_NETMOD="ofi"), "info"),
    ("HD021", "it stays behind", replace(shell(replace(GDR, inherits_environment=False), **ON)), "warning"),
    ("HD021", "the library reads it", shell(GDR, MV2_USE_CUDA="1"), None),
    ("HD021", "MPICH reads it", shell(MPICH, MPIR_CVAR_CH4_NETMOD="ofi"), None),
    ("HD021", "hidl gives it", Tuning(replace(MPICH, configured=ON)), None),
    ("HD021", "no library is known", shell(PlannedJob(), **ON), None),
    ("HD026", "a word for a number", shell(GDR, MV2_NUM_HCAS="all"), "warning"),
    ("HD026", "MPICH stops at a suffix", shell(MPICH, MPIR_CVAR_BCAST_LONG_MSG_SIZE="16K"), "error"),
    ("HD026", "MPICH stops at capitals", shell(MPICH, MPIR_CVAR_BCAST_INTRA_ALGORITHM="TREE"), "error"),
    ("HD026", "by its older name", shell(MPICH, MPICH_BCAST_MIN_PROCS="2k"), "error"),
    ("HD026", "MVAPICH2 reads yes as 0", shell(GDR, MV2_USE_CUDA="yes"), "warning"),
    ("HD026", "MVAPICH2 reads a suffix", shell(GDR, MV2_IBA_EAGER_THRESHOLD="16K"), None),
    ("HD026", "a module that it lacks", replace(shell(MPICH, MPIR_CVAR_CH4_NETMOD="ucx"), netmods=("ofi",)), "error"),
    ("HD026", "the run selects it", Tuning(replace(MPICH, configured=UCX), netmods=("ofi",)), "error"),
    ("HD026", "a module that it has", Tuning(replace(MPICH, configured=UCX), netmods=("ucx", "ofi")), None),
    ("HD026", "in any case", shell(MPICH, MPICH_CH4_NETMOD="OFI"), None),
    ("HD026", "its modules are unknown", Tuning(replace(MPICH, configured=UCX)), None),
    ("HD026", "a number", shell(GDR, MV2_NUM_HCAS="2"), None),
    ("HD022", "a plan that switches it off", Tuning(replace(PLANNED, configured=OFF), gpus=4), "warning"),
    ("HD022", "and sends GPU memory", Tuning(replace(PLANNED, configured=OFF, device_buffers=True), gpus=4), "error"),
    ("HD022", "by hand, without it", Tuning(replace(GDR, is_active=True), gpus=4), "warning"),
    ("HD022", "a plan has it", Tuning(replace(PLANNED, configured=ON), gpus=4), None),
    ("HD022", "AMD's", Tuning(replace(PLANNED, configured={"MV2_USE_ROCM": "1"}), gpus=4), None),
    ("HD022", "no GPUs", Tuning(replace(PLANNED, configured=OFF), gpus=0), None),
    ("HD022", "hidl will set it", Tuning(GDR, gpus=4), None),
    ("HD023", "the shell's against the preset", BOTH, "error"),
    ("HD023", "both in the shell", shell(GDR, MV2_SUPPORT_DL="1", **LIBMPI), "error"),
    ("HD023", "one of them", shell(GDR, **LIBMPI), None),
    ("HD023", "another library is preloaded", shell(GDR, MV2_SUPPORT_DL="1", LD_PRELOAD="libjemalloc.so.2"), None),
    ("HD024", "GDRCopy here", NO_GDRCOPY, "error"),
    ("HD024", "on a login node", replace(NO_GDRCOPY, on_this_host=False), "warning"),
    ("HD024", "a preload", Tuning(GDR, missing={"LD_PRELOAD": ("/opt/x.so",)}), "warning"),
    ("HD024", "all is there", Tuning(GDR), None),
    ("HD025", "MVAPICH2's", naming(True, ADAPTERS, MV2_IBA_HCA="mlx5_0:mlx5_7"), "error"),
    ("HD025", "UCX's", naming(True, ADAPTERS, UCX_NET_DEVICES="mlx5_9:1"), "error"),
    ("HD025", "NCCL's beginning of a name", naming(True, ADAPTERS, NCCL_IB_HCA="hfi"), "error"),
    ("HD025", "a login node has others", naming(False, ADAPTERS, MV2_IBA_HCA="mlx5_7"), "warning"),
    ("HD025", "this machine has none", naming(True, (), MV2_IBA_HCA="mlx5_0"), "error"),
    ("HD025", "a login node has none", naming(False, (), MV2_IBA_HCA="mlx5_0"), None),
    ("HD025", "they are there", naming(True, ADAPTERS, MV2_IBA_HCA="mlx5_0:mlx5_1"), None),
    ("HD025", "with ports, and an interface", naming(True, ADAPTERS, UCX_NET_DEVICES="mlx5_0:1,ib0"), None),
    ("HD025", "NCCL leaves one out", naming(True, ADAPTERS, NCCL_IB_HCA="^mlx5_9"), None),
    ("HD025", "NCCL begins so", naming(True, ADAPTERS, NCCL_IB_HCA="mlx5"), None),
    ("HD025", "nothing reads the variable", replace(shell(MPICH, MV2_IBA_HCA="mlx5_7"), adapters=ADAPTERS), None),
    ("HD025", "another machine's site", naming(True, None, MV2_IBA_HCA="mlx5_0"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(RULES, CASES)


def test_each_variable_of_the_shell_that_is_not_read_is_named() -> None:
    found = RULES.findings(shell(MPICH, MV2_IBA_HCA="mlx5_0", MV2_NUM_HCAS="2"))
    assert [one.fix for one in found] == ["unset MV2_IBA_HCA", "unset MV2_NUM_HCAS"]


@pytest.mark.parametrize(
    ("device", "netmods"), [("ch4:ucx ofi", ("ucx", "ofi")), ("ch4:ofi", ("ofi",)), ("ch3:nemesis", None)]
)
def test_network_modules_are_those_that_mpichversion_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, netmods: tuple[str, ...] | None
) -> None:
    job = replace(MPICH, inherited={"MPICH_CH4_NETMOD": "ucx"})
    monkeypatch.setattr(tuning, "plan_job", lambda context: job)
    answers = {"mpichversion": f"MPICH Version:      5.0.2\nMPICH Device:       {device}\nMPICH CC:  cc\n"}
    assert tuning.probe(context(host(tmp_path, answers=answers))).netmods == netmods
