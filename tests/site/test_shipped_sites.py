"""The sites that ship with hidl: each system is there with its key facts, and its rules hold for every job."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.plan.job_script import job_script
from hidl_cli.plan.options import RunRequest
from hidl_cli.plan.prepare import prepare
from hidl_cli.site.checks import RULES
from hidl_cli.site.detect import choose, detect
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.site.schema import Partition, Site


def site(name: str) -> Site:
    return load(RULES, name)


SHIPPED = [entry.name for entry in list_all("site") if entry.origin == "shipped"]
STAMPEDES = ["stampede2", "stampede2-knl", "stampede3"]
TACC = ["frontera", "frontera-rtx", "horizon", "lonestar6", "longhorn", *STAMPEDES, "vista"]
CORAL = ["lassen", "sierra", "summit"]
ALPS = ["alps-clariden", "alps-daint", "alps-santis"]
USES_GDR = ["dgx2", "frontera-rtx", "longhorn", "pitzer", "ri2"]
#: Those that no job script can be rendered for.
CANNOT_RUN = {
    "dgx2": "its file names no hosts",
    "oakforest-pacs": "scheduler pjm not supported yet",
    "taihulight": "scheduler sunway not supported yet",
}

#: name: status, scheduler, launchers, the default partition's cores, GPUs and GPU architecture of a node, default MPI.
FACTS: dict[str, tuple[str | None, str | None, list[str], int | None, int | None, str | None, str | None]] = {
    "alps-clariden": ("in-service", "slurm", ["srun"], 288, 4, "sm_90", "cray-mpich"),
    "alps-daint": ("in-service", "slurm", ["srun"], 288, 4, "sm_90", "cray-mpich"),
    "alps-santis": ("in-service", "slurm", ["srun"], 288, 4, "sm_90", "cray-mpich"),
    "anvil": ("in-service", "slurm", ["srun", "mpirun"], 128, 0, None, "openmpi"),
    "ascend": ("in-service", "slurm", ["srun"], 120, 2, "sm_80", "mvapich"),
    "aurora": ("in-service", "pbs", ["pals"], 102, 6, None, "mpich"),
    "cardinal": ("in-service", "slurm", ["srun"], 96, 0, None, "mvapich"),
    "comet": ("retired", "slurm", ["mpirun_rsh", "srun"], 24, 0, None, "mvapich2"),
    "cosmos": ("early", "slurm", ["mpiexec", "srun"], 96, 4, "gfx942", "mvapich-plus"),
    "delta": ("in-service", "slurm", ["srun", "mpirun"], 64, 4, "sm_80", "openmpi"),
    "derecho": ("in-service", "pbs", ["pals"], 128, 0, None, "cray-mpich"),
    "dgx2": (None, "ssh", ["mpirun_rsh"], None, 16, "sm_70", "mvapich2-gdr"),
    "expanse": ("in-service", "slurm", ["srun", "mpirun"], 128, 0, None, "openmpi"),
    "frontera": ("declining", "slurm", ["ibrun", "mpirun_rsh"], 56, 0, None, "mvapich2"),
    "frontera-rtx": ("declining", "slurm", ["mpirun_rsh", "ibrun"], None, 4, "sm_75", "mvapich2-gdr"),
    "frontier": ("in-service", "slurm", ["srun"], 56, 8, "gfx90a", "cray-mpich"),
    "horizon": ("early", "slurm", ["ibrun", "srun"], 72, 2, None, None),
    "jupiter": ("in-service", "slurm", ["srun"], 288, 4, "sm_90", "openmpi"),
    "juwels-booster": ("in-service", "slurm", ["srun"], 48, 4, "sm_80", "openmpi"),
    "lassen": (None, "lsf", ["jsrun"], 44, 4, "sm_70", "spectrum-mpi"),
    "leonardo": ("in-service", "slurm", ["srun", "mpirun"], 32, 4, "sm_80", "openmpi-gcc"),
    "lonestar6": ("in-service", "slurm", ["ibrun", "mpirun_rsh"], 128, 0, None, "mvapich2"),
    "longhorn": ("retired", "slurm", ["ibrun", "mpirun_rsh"], None, 4, "sm_70", "mvapich2-gdr"),
    "lumi": ("in-service", "slurm", ["srun"], 56, 8, "gfx90a", "cray-mpich"),
    "marenostrum5": ("in-service", "slurm", ["srun", "mpirun"], 80, 4, "sm_90", "openmpi"),
    "mri": ("in-service", "slurm", ["mpiexec"], None, None, "sm_80", "mvapich-plus"),
    "nurion": (None, "pbs", ["mpirun_rsh", "mpiexec", "mpirun"], 68, 0, None, "mvapich2"),
    "oakforest-pacs": ("retired", "pjm", ["mpiexec"], 68, 0, None, "impi"),
    "perlmutter": ("in-service", "slurm", ["srun"], 64, 4, "sm_80", "cray-mpich"),
    "pitzer": ("in-service", "slurm", ["mpirun_rsh", "srun"], 40, 2, "sm_70", "mvapich2-gdr"),
    "piz-daint": ("retired", "slurm", ["srun"], 12, 1, "sm_60", "cray-mpich"),
    "pleiades": (None, "pbs", ["mpiexec"], 28, 0, None, None),
    "polaris": ("in-service", "pbs", ["pals"], 32, 4, "sm_80", "cray-mpich"),
    "ri2": (None, "slurm", ["mpirun_rsh", "srun"], 28, 1, None, "mvapich2-gdr"),
    "sierra": ("retired", "lsf", ["jsrun"], 44, 4, "sm_70", "spectrum-mpi"),
    "stampede2": ("retired", "slurm", ["ibrun", "mpirun_rsh"], 48, 0, None, "mvapich2"),
    "stampede2-knl": ("retired", "slurm", ["ibrun", "mpirun_rsh"], 68, 0, None, "mvapich2"),
    "stampede3": ("in-service", "slurm", ["ibrun"], 48, 0, None, "impi"),
    "summit": ("retired", "lsf", ["jsrun"], 42, 6, "sm_70", "spectrum-mpi"),
    "taihulight": ("in-service", "sunway", [], None, None, None, None),
    "tuolumne": ("in-service", "flux", ["flux"], 84, 4, "gfx942", "cray-mpich"),
    "vista": ("in-service", "slurm", ["ibrun", "mpirun"], 72, 1, "sm_90", "openmpi"),
}

#: What nodes of these machines say of themselves: the host's name, variables, and the site that this is.
RECORDED = [
    ("login2.frontera.tacc.utexas.edu", {"TACC_SYSTEM": "frontera"}, "frontera"),
    ("c401-064.frontera.tacc.utexas.edu", {"TACC_SYSTEM": "frontera"}, "frontera"),
    ("login1.ls6.tacc.utexas.edu", {"TACC_SYSTEM": "ls6"}, "lonestar6"),
    ("c562-009.stampede3.tacc.utexas.edu", {}, "stampede3"),
    ("c641-092.vista.tacc.utexas.edu", {"TACC_SYSTEM": "vista"}, "vista"),
    ("c123-456.horizon.tacc.utexas.edu", {}, "horizon"),
    ("nothorizon.tacc.utexas.edu", {}, None),
    ("login10", {"LMOD_SYSTEM_NAME": "frontier"}, "frontier"),
    ("lassen708", {"LCSCHEDCLUSTER": "lassen"}, "lassen"),
    ("pitzer-login04.hpc.osc.edu", {}, "pitzer"),
    ("p0220.ten.osc.edu", {}, "pitzer"),
    ("ascend-login01.hpc.osc.edu", {}, "ascend"),
    ("cardinal-login03.hpc.osc.edu", {}, "cardinal"),
    ("c0813.ten.osc.edu", {}, "cardinal"),
    ("daint-ln001", {"CLUSTER_NAME": "daint"}, "alps-daint"),
    ("nid005414", {"CLUSTER_NAME": "clariden"}, "alps-clariden"),
    ("santis-ln001", {"CLUSTER_NAME": "santis"}, "alps-santis"),
    ("login07", {"NERSC_HOST": "perlmutter", "LMOD_SYSTEM_NAME": "perlmutter"}, "perlmutter"),
    ("login1.longhorn.tacc.utexas.edu", {}, "longhorn"),
    ("comet-ln2.sdsc.edu", {}, "comet"),
    ("login01.cosmos.sdsc.edu", {}, "cosmos"),
    ("head.ri2.cse.ohio-state.edu", {}, "ri2"),
    ("mri.cluster", {}, "mri"),
    ("dt-login02.delta.ncsa.illinois.edu", {}, "delta"),
    ("gpub045.delta.internal.ncsa.edu", {}, "delta"),
    ("dtai-login.delta.ncsa.illinois.edu", {}, None),
    ("login02.expanse.sdsc.edu", {}, "expanse"),
    ("a010", {"RCAC_CLUSTER": "anvil"}, "anvil"),
    ("lumi-uan04.csc.fi", {}, "lumi"),
    ("login02.leonardo.local", {}, "leonardo"),
    ("lrdn1455.leonardo.local", {}, "leonardo"),
    ("jwlogin22", {"SYSTEMNAME": "juwelsbooster"}, "juwels-booster"),
    ("jwlogin08.juwels", {"SYSTEMNAME": "juwels"}, None),
    ("alogin1", {"BSC_MACHINE": "mn5"}, "marenostrum5"),
    ("aurora-uan-0010.hostmgmt1000.cm.aurora.alcf.anl.gov", {}, "aurora"),
    ("x4117c3s3b0n0", {}, "aurora"),
    ("polaris-login-02.hsn.cm.polaris.alcf.anl.gov", {}, "polaris"),
    ("x3008c0s13b1n0", {}, "polaris"),
    ("derecho6", {"NCAR_HOST": "derecho"}, "derecho"),
    ("casper-login1", {"NCAR_HOST": "casper"}, None),
    ("tuolumne1046", {}, "tuolumne"),
    ("laptop", {"HOME": "/home/me"}, None),
]


def walls(partition: Partition) -> list[tuple[int | None, str]]:
    return [(limit.max_nodes, limit.max_wall) for limit in partition.max_wall_by_nodes]


def test_all_systems_are_there_and_each_is_held_by_this_table() -> None:
    assert {*FACTS, "local", "test-cluster"} == set(SHIPPED)


@pytest.mark.parametrize("name", FACTS)
def test_the_key_facts_of(name: str) -> None:
    found = site(name)
    node = found.node_type()

    assert FACTS[name] == (
        found.status,
        found.scheduler,
        found.launchers,
        node.cores,
        node.gpus,
        node.gpu_arch,
        found.default_mpi,
    )


def test_every_site_can_run_jobs_or_says_why_not() -> None:
    reasons = {name: reason_not_runnable(site(name)) for name in SHIPPED}

    assert {name: reason for name, reason in reasons.items() if reason} == CANNOT_RUN


@pytest.mark.parametrize("name", sorted({*SHIPPED} - {*CANNOT_RUN}))
def test_a_job_script_is_rendered_for(name: str, config: Path) -> None:
    found = site(name)
    partition = found.partition()
    nodes = partition.min_nodes if partition else 1
    required = {option: "X" for option in ("account", "reservation") if getattr(found.policies, option) == "required"}

    plan = prepare(RunRequest("mpi-sanity", site=name, nodes=nodes, hypothetical=True, **required))

    assert not plan.missing
    assert f"nodes={nodes}" in job_script(plan) or found.scheduler != "slurm"


@pytest.mark.parametrize("name", sorted(CANNOT_RUN))
def test_where_no_job_script_can_be_rendered_the_error_is_the_reason(name: str, config: Path) -> None:
    with pytest.raises(HidlError, match=CANNOT_RUN[name]):
        prepare(RunRequest("mpi-sanity", site=name, hypothetical=True))


@pytest.mark.parametrize("name", [name for name in SHIPPED if site(name).match and site(name).match.hostname])
def test_where_the_host_name_shows_the_site_a_login_host_is_known(name: str) -> None:
    found = site(name)

    assert found.match is not None
    assert re.fullmatch(found.match.hostname or "", found.login_host or "")


@pytest.mark.parametrize("name", FACTS)
def test_a_site_reports_where_its_facts_come_from(name: str) -> None:
    assert site(name).sources


@pytest.mark.parametrize("name", FACTS)
def test_the_successor_of_a_site_is_a_site(name: str) -> None:
    assert site(name).successor in {None, *SHIPPED}


@pytest.mark.parametrize("name", FACTS)
def test_every_mpi_library_has_a_launcher_of_the_site(name: str) -> None:
    found = site(name)

    assert not {launcher for mpi in found.mpi.values() for launcher in mpi.launchers} - set(found.launchers)


@pytest.mark.parametrize(("hostname", "environment", "name"), RECORDED)
def test_a_machine_is_the_site_that_it_says_and_no_other(
    config: Path, hostname: str, environment: dict[str, str], name: str | None
) -> None:
    outcomes = detect(ThisHost(environment, hostname=hostname))

    assert [outcome.site for outcome in outcomes if outcome.matched] == ([name] if name else [])
    assert choose(outcomes) == name


def test_every_condition_is_held_by_a_recorded_machine() -> None:
    assert {name for name in FACTS if site(name).match} == {name for *_, name in RECORDED if name}


@pytest.mark.parametrize("name", TACC)
def test_tacc_wants_time_limits_and_no_node_names_memory_gpus_or_environment(name: str) -> None:
    policies = site(name).policies

    assert policies.time == "required"
    assert policies.tasks == "required"
    assert (policies.node_names, policies.memory, policies.gpus, policies.export) == (False, "none", "none", "never")


@pytest.mark.parametrize("name", [name for name in TACC if name != "frontera-rtx"])
def test_tacc_starts_ranks_with_ibrun(name: str) -> None:
    assert site(name).launchers[0] == "ibrun"


@pytest.mark.parametrize("name", [name for name in TACC if site(name).mpi])
def test_at_tacc_mpirun_rsh_is_there_for_mvapich2_alone(name: str) -> None:
    with_it = {mpi.family for mpi in site(name).mpi.values() if "mpirun_rsh" in mpi.launchers}

    assert with_it == {mpi.family for mpi in site(name).mpi.values() if mpi.family.startswith("mvapich2")}


def test_the_rtx_nodes_of_frontera_run_mvapich2_gdr_by_mpirun_rsh_as_seen_there() -> None:
    found = site("frontera-rtx").mpi["mvapich2-gdr"]

    assert (found.launchers[0], found.modules[0]) == ("mpirun_rsh", "gcc/8.3.0")
    assert (found.tuning["MV2_SUPPORT_DL"], found.tuning["MV2_USE_GDRCOPY"]) == (1, 0)


@pytest.mark.parametrize("name", USES_GDR)
def test_where_mvapich2_gdr_is_known_to_run_it_is_the_default(name: str) -> None:
    found = site(name)

    assert found.default_mpi is not None
    assert found.mpi[found.default_mpi].family == "mvapich2-gdr"


def test_lonestar6_has_nodes_of_three_gpus() -> None:
    assert site("lonestar6").node_type("gpu-a100").gpus == 3


@pytest.mark.parametrize("name", CORAL)
def test_gpu_memory_needs_an_argument_of_jsrun_under_spectrum_mpi(name: str) -> None:
    assert site(name).mpi["spectrum-mpi"].with_gpus.launcher_arguments == {"jsrun": ["--smpiargs=-gpu"]}


@pytest.mark.parametrize("name", CORAL)
def test_mvapich2_gdr_runs_under_jsrun(name: str) -> None:
    found = site(name).mpi["mvapich2-gdr"]

    assert (found.family, found.launchers, found.launcher_arguments) == ("mvapich2-gdr", ["jsrun"], {})


def test_run_times_of_summit_and_frontier_go_by_the_number_of_nodes() -> None:
    assert walls(site("summit").partitions["batch"])[0] == (45, "02:00:00")
    assert walls(site("summit").partitions["batch"])[-1] == (4608, "24:00:00")
    assert walls(site("frontier").partitions["batch"]) == [(91, "02:00:00"), (183, "06:00:00"), (9472, "12:00:00")]


def test_the_run_time_of_claridens_debug_partition_is_one_and_a_half_node_hours() -> None:
    limits = dict(walls(site("alps-clariden").partitions["debug"]))

    assert limits == {1: "01:30:00", 2: "00:45:00", 3: "00:30:00", 4: "00:22:30"}


@pytest.mark.parametrize("name", ["aurora", "polaris"])
def test_jobs_at_alcf_name_their_file_systems(name: str) -> None:
    assert [line.partition("=")[0] for line in site(name).policies.directives] == ["-l filesystems"]


def test_run_times_of_prod_go_by_the_number_of_nodes() -> None:
    assert walls(site("aurora").partitions["prod"])[0] == (1024, "12:00:00")
    assert walls(site("polaris").partitions["prod"]) == [(24, "03:00:00"), (99, "06:00:00"), (496, "24:00:00")]


def test_derechos_queue_main_has_both_kinds_of_nodes() -> None:
    partitions = site("derecho").partitions

    assert [(partitions[name].queue or name, partitions[name].node_type) for name in ("main", "main-gpu")] == [
        ("main", "cpu"),
        ("main", "gpu"),
    ]


def test_frontiers_debug_is_a_quality_of_service_of_batch() -> None:
    debug = site("frontier").partitions["debug"]

    assert (debug.queue, debug.qos) == ("batch", "debug")


def test_frontier_offers_mvapich_plus_beside_cray_mpich() -> None:
    assert site("frontier").mpi["mvapich-plus"].modules == ["ums", "ums038"]


@pytest.mark.parametrize("name", ["frontier", "lumi", "perlmutter", "polaris", "tuolumne", *ALPS])
def test_cray_mpich_knows_of_gpus(name: str) -> None:
    assert site(name).mpi["cray-mpich"].with_gpus.environment == {"MPICH_GPU_SUPPORT_ENABLED": "1"}


@pytest.mark.parametrize("name", ALPS)
def test_on_alps_other_mpi_libraries_need_other_ways_of_srun(name: str) -> None:
    mpi = site(name).mpi

    assert (mpi["cray-mpich"].srun_mpi, mpi["openmpi"].srun_mpi, mpi["mpich"].srun_mpi) == (None, "pmix", "pmi2")
    assert mpi["mpich"].tuning == {"MPIR_CVAR_CH4_OFI_ENABLE_HMEM": 1}


@pytest.mark.parametrize("name", ["perlmutter", "piz-daint"])
def test_where_jobs_ask_for_features_no_partition_is_named(name: str) -> None:
    found = site(name)

    assert (found.policies.partition, found.policies.constraint) == ("never", "required")
    assert all(partition.constraint for partition in found.partitions.values())


def test_perlmutters_jobs_name_a_quality_of_service() -> None:
    found = site("perlmutter")

    assert found.policies.qos == "required"
    assert {partition.qos for partition in found.partitions.values()} == {"regular", "debug"}


def test_mn5s_jobs_name_a_quality_of_service_and_no_partition() -> None:
    found = site("marenostrum5")

    assert (found.policies.partition, found.policies.qos) == ("never", "required")
    assert all(partition.qos for partition in found.partitions.values())


def test_only_vistas_mvapich_plus_carries_the_variables_of_the_successors() -> None:
    mpi = site("vista").mpi

    assert mpi["mvapich-plus"].with_gpus.tuning["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM"] == "osu_gpu_direct"
    assert not mpi["openmpi"].tuning
    assert not mpi["mvapich"].tuning
