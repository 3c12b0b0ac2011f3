"""What Slurm is, from what `scontrol` prints."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import slurm
from hidl_cli.site.probes.facts import Hardware, SchedulerFacts
from tests.site.recording import DIRECTORY, RecordedHost, recorded


def probe(config: str = "", nodes: str = "", partitions: str = "", **environment: str) -> SchedulerFacts:
    """The facts of a Slurm whose `scontrol` prints this; sacctmgr answers for alice and bob."""
    found = slurm.probe(
        RecordedHost(
            DIRECTORY / "none",
            environment=environment,
            programs={"scontrol": "/usr/bin/scontrol", "sacctmgr": "/usr/bin/sacctmgr"},
            answers={
                "scontrol show config": f"Configuration data as of now\nSLURM_VERSION = 24.05.1\n{config}",
                "scontrol --oneliner show node": nodes,
                "scontrol --oneliner show partition": partitions,
                "sacctmgr --noheader --parsable2 show user alice format=DefaultAccount": "physics\n",
                "sacctmgr --noheader --parsable2 show user bob format=DefaultAccount": "\n",
            },
        )
    )
    assert found is not None
    return found


def policy(key: str, batch: SchedulerFacts) -> str | bool | None:
    return {policy.key: policy.value for policy in batch.policies}.get(key)


def test_nodes_are_read_with_what_their_slurmd_registered() -> None:
    batch = slurm.probe(recorded("ampere"))
    assert batch is not None
    node = next(node for node in batch.nodes if node.name == "gpu001")

    assert node.hardware == Hardware(2, 64, 2, 515000, 4, "a100")
    assert (node.arch, node.features, node.queues) == (
        "x86_64",
        {"a100", "nvlink", "ib"},
        ("gpu", "gpu-dev", "priority"),
    )


def test_cores_and_memory_that_slurm_keeps_for_the_system_are_not_for_jobs() -> None:
    line = "NodeName=n1 CoresPerSocket=64 CoreSpecCount=8 RealMemory=512000 MemSpecLimit=12000 Sockets=1\n"

    (node,) = probe(nodes=line).nodes

    assert (node.hardware.cores, node.hardware.memory_mib) == (56, 500000)


def test_without_gpu_gres_the_number_of_gpus_is_unknown() -> None:
    line = "NodeName=n1 CoresPerSocket=4 Sockets=1 Gres=(null)\n"

    gpus = {
        types: probe(f"GresTypes = {types}\n", line).nodes[0].hardware.gpus for types in ("(null)", "mps", "gpu,mps")
    }

    assert gpus == {"(null)": None, "mps": None, "gpu,mps": 0}


def test_free_text_is_not_taken_for_fields() -> None:
    line = "NodeName=n1 Sockets=1 CoresPerSocket=4 Comment=Sockets=9 Reason=Gres=gpu:8 RealMemory=7 [root@now]\n"

    (node,) = probe("GresTypes = gpu\n", line).nodes

    assert node.hardware == Hardware(1, 4, None, None, 0, None)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("MaxNodes=16 MaxTime=2-00:00:00 MinNodes=2", (2, 16, "2-00:00:00")),
        ("MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0", (1, None, None)),
        ("MaxNodes=2 MaxTime=00:30:00 MinNodes=4", (4, None, "00:30:00")),
        ("", (1, None, None)),
    ],
)
def test_limits_of_a_partition(line: str, expected: tuple[int, int | None, str | None]) -> None:
    (queue,) = probe(partitions=f"PartitionName=p Nodes=n1 {line}\n").queues

    assert (queue.min_nodes, queue.max_nodes, queue.max_wall) == expected


@pytest.mark.parametrize(
    ("line", "restricted", "left_out"),
    [
        ("AllowAccounts=ALL AllowGroups=ALL AllowQos=ALL", False, None),
        ("AllowAccounts=chemistry,physics", True, None),
        ("AllowGroups=staff", True, None),
        ("AllowQos=high", True, None),
        ("RootOnly=YES", False, "only root can submit jobs"),
        ("Nodes=(null)", False, "it has no nodes"),
    ],
)
def test_who_may_use_a_partition(line: str, restricted: bool, left_out: str | None) -> None:
    (queue,) = probe(partitions=f"PartitionName=p {line} Nodes=n1\n".replace("(null) Nodes=n1", "(null)")).queues

    assert (queue.restricted, queue.left_out) == (restricted, left_out)


@pytest.mark.parametrize(
    ("config", "partition", "key", "value"),
    [
        ("SelectType = select/cons_tres", "", "cpus", "cpus-per-task"),
        ("SelectType = select/linear", "", "cpus", None),
        ("SelectType = select/cons_tres", "OverSubscribe=EXCLUSIVE", "cpus", None),
        ("SelectTypeParameters = CR_CORE_MEMORY\nDefMemPerCPU = 3800", "", "memory", "mem"),
        ("SelectTypeParameters = CR_CORE_MEMORY\nDefMemPerNode = UNLIMITED", "", "memory", None),
        ("SelectTypeParameters = CR_CORE\nDefMemPerCPU = 3800", "", "memory", None),
        ("GresTypes = gpu", "", "gpus", "gres"),
        ("GresTypes = (null)", "", "gpus", None),
    ],
)
def test_policies_follow_from_the_configuration(config: str, partition: str, key: str, value: str | None) -> None:
    batch = probe(f"{config}\n", partitions=f"PartitionName=p Nodes=n1 {partition}\n")

    assert policy(key, batch) == value


@pytest.mark.parametrize(
    ("enforced", "user", "expected"),
    [
        ("associations,limits,qos", "alice", "optional"),
        ("associations", "bob", "required"),
        ("associations", "carol", None),
        ("none", "bob", None),
    ],
    ids=["a default account", "none", "no answer", "not enforced"],
)
def test_an_account_is_required_of_users_without_a_default_one(enforced: str, user: str, expected: str | None) -> None:
    batch = probe(f"AccountingStorageEnforce = {enforced}\n", USER=user)

    assert policy("account", batch) == expected


def test_limits_that_are_not_enforced_are_reported() -> None:
    assert "never start" in " ".join(probe("EnforcePartLimits = NO\n").remarks)
    assert "never start" not in " ".join(probe("EnforcePartLimits = ALL\n").remarks)


def test_a_slurmctld_that_gives_no_answer_reports_nothing() -> None:
    host = RecordedHost(DIRECTORY / "none", programs={"scontrol": "/usr/bin/scontrol"})

    assert slurm.probe(host) == SchedulerFacts("slurm")


def test_without_scontrol_there_is_no_slurm() -> None:
    assert slurm.probe(RecordedHost(DIRECTORY / "none")) is None


def test_what_srun_offers_is_read_with_the_versions_of_pmix() -> None:
    batch = slurm.probe(recorded("test-cluster"))

    assert batch is not None
    assert set(batch.srun_mpi) == {"pmix", "none", "cray_shasta", "pmi2", "pmix_v4"}


@pytest.mark.parametrize(
    ("gres", "expected"),
    [
        ("(null)", (0, None)),
        ("", (0, None)),
        ("gpu", (1, None)),
        ("gpu:4", (4, None)),
        ("gpu:a100:4", (4, "a100")),
        ("gpu:a100:4(S:0-1)", (4, "a100")),
        ("gpu:a100:4(S:0,3)", (4, "a100")),
        ("gpu:a100:no_consume:4", (4, "a100")),
        ("gpu:v100:2,gpu:t4:2", (4, "t4, v100")),
        ("gpu:a100:2,gpu:a100:2", (4, "a100")),
        ("gpu:h100:2,gpu:h100_1g.10gb:7,shard:8,mps:400", (2, "h100, 7 x h100_1g.10gb")),
        ("gpu:1g.5gb:4,gpu:a100_3g.20gb:2", (6, "1g.5gb, a100_3g.20gb")),
        ("fpga:1,gpu:v100:2(S:0),mps:200", (2, "v100")),
        ("gpu:1g.5gb:7", (7, "1g.5gb")),
        ("craynetwork:4", (0, None)),
        ("gpu:4K", (4096, None)),
        ("gpu:a100:many", (None, None)),
    ],
)
def test_gpus_in_every_form_of_gres(gres: str, expected: tuple[int | None, str | None]) -> None:
    assert slurm.gpus_of(gres) == expected
