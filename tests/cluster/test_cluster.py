"""The cluster as a whole: nodes of their own, one Slurm over them, restarted by `up`, and gone after `down`."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from hidl_twin import marks, network
from hidl_twin.cluster import Cluster, shared
from hidl_twin.layout import runtime_directory

from hidl_cli.errors import HidlError, MissingPrecondition, UsageError
from hidl_cli.site.machine import machine
from tests.cluster.cluster import LivingCluster
from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import patience, until

# --- what one has -----------------------------------------------------------------------------------------------------


def test_a_step_on_all_nodes_runs_on_four_hosts(cluster: LivingCluster) -> None:
    assert sorted(cluster("srun", "-N4", "hostname").stdout.split()) == ["node1", "node2", "node3", "node4"]


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_what_one_node_writes_there_no_other_sees(cluster: LivingCluster, place: str) -> None:
    cluster("srun", "-w", "node1", "touch", f"{place}/of-node1")
    found = cluster("srun", "-N4", "-l", "sh", "-c", f"test -e {place}/of-node1 && hostname").stdout
    assert (found.split()[1:], Path(place, "of-node1").exists()) == (["node1"], False)


def test_a_shared_directory_is_seen_on_all_nodes(cluster: LivingCluster, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("from here\n")
    assert cluster("srun", "-N4", "cat", str(tmp_path / "file")).stdout == "from here\n" * 4


def test_no_node_sees_the_processes_of_another(cluster: LivingCluster) -> None:
    told = cluster("srun", "-N4", "sh", "-c", "pgrep -c -x slurmd").stdout
    assert told.split() == ["1", "1", "1", "1"]


def test_each_node_sees_its_own_network_devices_alone(cluster: LivingCluster) -> None:
    assert cluster.on("node3", "ls", "/sys/class/net").split() == ["eth0", "lo"]


def test_root_goes_by_ssh_from_here_to_a_node_and_on_to_another(cluster: LivingCluster) -> None:
    assert cluster("ssh", "-F", str(cluster.ssh_config), "node1", "ssh node2 hostname").stdout == "node2\n"


def test_slurms_commands_find_the_cluster_on_the_nodes_too(cluster: LivingCluster) -> None:
    found = cluster("ssh", "-F", str(cluster.ssh_config), "node4", "sinfo -h -p small -o %N")
    assert (found.stdout, found.stderr) == ("node[1-2]\n", "")


@pytest.mark.parametrize(("kind", "variable"), [("pmi2", "PMI_RANK"), ("pmix", "PMIX_RANK")])
def test_srun_numbers_the_ranks_for_mpi(cluster: LivingCluster, kind: str, variable: str) -> None:
    told = cluster("srun", f"--mpi={kind}", "-N2", "-n2", "sh", "-c", f"echo ${variable}").stdout
    assert sorted(told.split()) == ["0", "1"]


def test_sacct_knows_a_job_that_has_ended(cluster: LivingCluster) -> None:
    job = cluster("sbatch", "--parsable", "--wait", "--output=/dev/null", "--wrap=true").stdout.strip()
    until(lambda: cluster("sacct", "-nXP", "-j", job, "-o", "State").stdout == "COMPLETED\n")


def test_a_job_over_a_limit_is_refused(cluster: LivingCluster) -> None:
    assert "Requested time limit is invalid" in cluster("sbatch", "-p", "small", "-t", "6", "--wrap=true").stderr


def test_status_reports_of_each_daemon_and_each_node(cluster: LivingCluster, hidl: Hidl) -> None:
    told = hidl.json("cluster", "status", "--directory", str(cluster.directory))
    daemons = {daemon["name"]: daemon["answers"] for daemon in told["daemons"]}
    nodes = {node["name"]: (node["sshd"], node["slurmd"], node["state"]) for node in told["nodes"]}
    assert (daemons, nodes) == (
        {"munged": True, "mariadbd": True, "slurmdbd": True, "slurmctld": True},
        {f"node{number}": (True, True, "idle") for number in range(1, 5)},
    )


def test_env_leads_slurms_commands_to_the_cluster(cluster: LivingCluster, hidl: Hidl) -> None:
    lines = hidl("cluster", "env", "--directory", str(cluster.directory)).stdout
    found = subprocess.run(["sh", "-c", lines + "sinfo -h -o %D -p debug"], capture_output=True, text=True, check=True)
    assert found.stdout == "4\n"


def test_the_site_test_cluster_is_recognized(cluster: LivingCluster, hidl: Hidl) -> None:
    told = json.loads(hidl("site", "detect", "--json", **cluster.environment).stdout)
    assert told["site"] == "test-cluster"


# --- what dies is restarted by `up` -----------------------------------------------------------------------------------


@pytest.fixture
def running(cluster: LivingCluster, tmp_path: Path) -> Path:
    """A file that a job on node 1 writes when it ends well; the job is ended by making the file ``go`` beside it."""
    script = f"touch {tmp_path}/begun; while ! test -e {tmp_path}/go; do sleep 0.1; done; touch {tmp_path}/ended"
    assert cluster("sbatch", "-w", "node1", "--output=/dev/null", f"--wrap={script}").returncode == 0
    until((tmp_path / "begun").exists)
    return tmp_path / "ended"


def ends_well(cluster: LivingCluster, job: Path) -> bool:
    (job.parent / "go").touch()
    until(job.exists)
    until(lambda: "COMPLETED" in cluster("squeue", "-h", "-t", "all", "-o", "%T").stdout)
    return True


@pytest.mark.parametrize("daemon", [deep("munged"), deep("mariadbd"), deep("slurmdbd"), "slurmctld"])
def test_up_starts_a_killed_daemon_and_the_jobs_live_on(cluster: LivingCluster, running: Path, daemon: str) -> None:
    with cluster.restored():
        cluster.wait_until_saved()
        cluster.kill(daemon)
        assert not cluster.answers(daemon)
        cluster.mend()
        assert cluster.answers(daemon)
        assert ends_well(cluster, running)


@pytest.mark.parametrize("daemon", [deep("sshd"), "slurmd"])
def test_up_starts_a_nodes_killed_daemon_and_the_jobs_live_on(
    cluster: LivingCluster, running: Path, daemon: str
) -> None:
    with cluster.restored():
        cluster.kill_on("node1", daemon)
        cluster.mend()
        assert cluster.on("node1", "pgrep", "-x", "-c", daemon) == "1\n"
        assert ends_well(cluster, running)


def test_up_makes_a_killed_node_again(cluster: LivingCluster) -> None:
    with cluster.restored():
        cluster.kill_node("node3")
        cluster.mend()
        assert cluster("srun", "-w", "node3", "hostname").stdout == "node3\n"


@pytest.mark.deep
def test_slurm_notices_that_a_node_is_lost_and_that_it_is_back(cluster: LivingCluster) -> None:
    with cluster.restored():
        cluster.kill_node("node4")
        until(lambda: str(cluster.state("node4")).startswith("down"))
        cluster.start_node("node4")
        until(lambda: cluster.state("node4") == "idle")


def test_up_makes_a_lost_network_again_and_the_jobs_live_on(cluster: LivingCluster, running: Path) -> None:
    with cluster.restored():
        marks.end(marks.find(cluster.directory)[network.ROLE], signal.SIGKILL, 5)
        cluster.mend()
        assert cluster("srun", "-N4", "hostname").returncode == 0
        assert ends_well(cluster, running)


@pytest.mark.deep
def test_up_replaces_a_cable_that_does_not_end_at_the_switch(cluster: LivingCluster) -> None:
    """As one of a switch that was killed just now: its other end is at the node until the kernel takes it away."""
    with cluster.restored():
        switch = str(marks.find(cluster.directory)[network.ROLE][0])
        devices = re.findall(r"^ *(port\d+):", Path(f"/proc/{switch}/net/dev").read_text(), re.MULTILINE)
        assert len(devices) == 4
        port = devices[-1]
        inside = ["nsenter", "--net", "--target", switch]
        subprocess.run([*inside, "ip", "link", "set", port, "netns", str(os.getpid())], check=True)
        try:
            cluster.mend()
            assert cluster("srun", "-N4", "hostname").returncode == 0
        finally:
            subprocess.run(["ip", "link", "del", port], check=False)


def test_a_job_that_is_cancelled_leaves_no_process_on_its_nodes(cluster: LivingCluster) -> None:
    with cluster.restored():
        job = cluster(
            "sbatch", "--parsable", "-wnode[1-2]", "--output=/dev/null", "--wrap=srun /usr/bin/sleep 1234"
        ).stdout.strip()
        until(lambda: "/usr/bin/sleep 1234" in cluster.processes("node2"))
        cluster("scancel", job)
        until(lambda: not cluster.processes("node1") + cluster.processes("node2"))


# --- what can be switched ---------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_without_enforced_limits_a_job_over_them_waits_for_ever(cluster: LivingCluster) -> None:
    with cluster.restored():
        cluster.switch(enforce_limits=False)
        cluster("sbatch", "-p", "small", "-t", "6", "--wrap=true")
        until(lambda: cluster("squeue", "-h", "-o", "%T %r").stdout == "PENDING PartitionTimeLimit\n")


@pytest.mark.deep
def test_the_accounting_can_be_taken_away_and_brought_back_while_a_job_runs(
    cluster: LivingCluster, running: Path
) -> None:
    with cluster.restored():
        cluster.switch(accounting=False)
        assert "accounting storage is disabled" in cluster("sacct").stderr
        cluster.switch(accounting=True)
        assert cluster("sacct").returncode == 0
        assert ends_well(cluster, running)


def test_up_with_other_nodes_makes_them(second_cluster: LivingCluster) -> None:
    Cluster(second_cluster.directory).up(nodes=2, cpus_per_node=3)
    assert second_cluster("sinfo", "-h", "-p", "debug", "-o", "%D %c").stdout == "2 3\n"


def test_ranks_are_bound_to_cores_that_this_machine_has_not(second_cluster: LivingCluster) -> None:
    more = machine().cores + 3
    for cpus, shown in ((more, more), (1, os.cpu_count())):
        Cluster(second_cluster.directory).up(cpus_per_node=cpus)
        assert second_cluster.on("node1", "getconf", "_NPROCESSORS_ONLN") == f"{shown}\n"
        assert second_cluster("srun", f"-c{cpus}", "nproc").stdout == f"{cpus}\n"


@pytest.mark.deep
def test_a_directory_of_any_name_can_be_shared_later(second_cluster: LivingCluster) -> None:
    with tempfile.TemporaryDirectory(prefix='it\'s "$HOME"; ', dir="/dev/shm") as share:
        Path(share, "file").write_text("from here\n")
        Cluster(second_cluster.directory).up(shares=shared([Path(share), second_cluster.directory.parent]))
        assert second_cluster("srun", "cat", f"{share}/file").stdout == "from here\n"


def test_a_job_can_begin_with_the_environment_of_a_login(cluster: LivingCluster, tmp_path: Path) -> None:
    script = 'echo "$HOME ${SUBMITTED:-nothing}"'
    output = f"--output={tmp_path}/out"
    cluster("sbatch", "--wait", "--export=NONE", output, f"--wrap={script}", SUBMITTED="something")
    assert (tmp_path / "out").read_text().splitlines()[-1:] == [f"{Path('~root').expanduser()} nothing"]


# --- what is left -----------------------------------------------------------------------------------------------------


def left_of(directory: Path) -> list[object]:
    """All that the machine has of a cluster in ``directory``: processes, network devices, mounts."""
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(directory) in line]
    return [*marks.find(directory), *network.host_links(Cluster(directory).layout, None), *mounts]


def namespaces() -> set[str]:
    """The namespaces that processes of this machine are in."""
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/*"):
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue
    return found


def down(directory: Path, *options: str) -> int:
    command = [sys.executable, "-m", "hidl_cli", "cluster", "down", "--directory", str(directory), *options]
    return subprocess.run(command, check=False, capture_output=True).returncode


def test_two_clusters_live_side_by_side_and_down_ends_one_wholly(
    cluster: LivingCluster, second_cluster: LivingCluster
) -> None:
    places = [
        Path(f"/proc/{Cluster(second_cluster.directory).nodes['node1'].init}/ns/{kind}") for kind in ("net", "mnt")
    ]
    own = {str(place.readlink()) for place in places}
    with places[0].open("rb"), places[1].open("rb"):  # so that no other namespace gets their numbers
        assert second_cluster("srun", "hostname").stdout == "node1\n"
        assert down(second_cluster.directory) == 0
        assert left_of(second_cluster.directory) == []
        assert own.isdisjoint(namespaces())
    assert cluster("srun", "-N4", "true").returncode == 0


def test_a_node_of_another_user_is_reported_and_neither_entered_nor_ended(
    second_cluster: LivingCluster, tmp_path: Path
) -> None:
    """The attacker's mount namespace has another program at the place of the shell."""
    nobody, out = 65534, tmp_path / "out"
    hostile = f"mount --bind {tmp_path}/hostile /usr/bin/sh; echo up; /usr/bin/sleep 20; true"
    (tmp_path / "hostile").write_text(f"#!/bin/bash\nid > {out}\n")
    (tmp_path / "hostile").chmod(0o755)
    claims = {"HIDL_CLUSTER_DIRECTORY": str(second_cluster.directory), "HIDL_CLUSTER_ROLE": "node1"}
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    second_cluster.kill_node("node1")
    with subprocess.Popen(
        [
            "unshare",
            "-Ur",
            "--net",
            "--uts",
            "--ipc",
            "--mount",
            "--pid",
            "--fork",
            "--mount-proc",
            "bash",
            "-c",
            hostile,
        ],
        env={"PATH": os.environ["PATH"], **claims},
        stdout=subprocess.PIPE,
        user=nobody,
        group=nobody,
        extra_groups=[],
    ) as attacker:
        try:
            assert attacker.stdout is not None
            assert attacker.stdout.readline() == b"up\n"
            with pytest.raises(HidlError, match=f"node1 is down.*of user {nobody}"):
                second_cluster.on("node1", "id")
            ignored = Cluster(second_cluster.directory).status()["ignored"]
            assert any(f"process {attacker.pid} of user {nobody}" in each for each in ignored)
            second_cluster.mend()
            assert second_cluster("srun", "hostname").stdout == "node1\n"
            command = [sys.executable, "-m", "hidl_cli", "cluster", "down", "--directory", second_cluster.directory]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert (done.returncode, f"ignored process {attacker.pid} of user {nobody}" in done.stderr) == (0, True)
            assert attacker.poll() is None
        finally:
            found = Path(f"/proc/{attacker.pid}/task/{attacker.pid}/children").read_text().split()
            for pid in [*map(int, found), attacker.pid]:
                os.kill(pid, signal.SIGKILL)
    assert not out.exists()


def test_nothing_of_a_cluster_that_is_down_is_left_in_run(second_cluster: LivingCluster) -> None:
    place = runtime_directory(second_cluster.directory)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert down(second_cluster.directory) == 0
    assert not place.exists()


def test_the_clusters_daemons_listen_on_its_own_network(cluster: LivingCluster) -> None:
    pids = {str(pid) for role in marks.find(cluster.directory).values() for pid in role}
    listed = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
    own = [line.split()[3] for line in listed if pids & set(re.findall(r"pid=(\d+)", line))]
    address = Cluster(cluster.directory).settings.controller_address
    assert sorted({where.rpartition(":")[0] for where in own}) == [address]
    assert len(own) == 2


def test_down_names_the_clusters_that_stay_up(cluster: LivingCluster, hidl: Hidl) -> None:
    with tempfile.TemporaryDirectory(prefix="hidl-", dir="/dev/shm") as state:  # sockets' paths are short
        done = hidl("cluster", "down", XDG_STATE_HOME=state)
        one = hidl("cluster", "down", "--like", "frontera", XDG_STATE_HOME=state)
    stop = f"hidl cluster down --directory {cluster.directory}"
    named = f"another cluster is up in {cluster.directory}; to stop it, run: {stop}"
    assert (done.returncode, named in " ".join(done.stderr.split())) == (0, True), done.stderr
    assert (one.returncode, "another cluster" in one.stderr) == (0, False)


def test_a_cluster_that_was_down_comes_up_again_with_its_history(second_cluster: LivingCluster) -> None:
    first = second_cluster("sbatch", "--parsable", "--output=/dev/null", "--wrap=true").stdout
    assert down(second_cluster.directory) == 0
    second_cluster.mend()
    assert int(second_cluster("sbatch", "--parsable", "--output=/dev/null", "--wrap=true").stdout) == int(first) + 1


@pytest.mark.deep
def test_down_finds_all_of_a_cluster_whose_directory_is_gone(second_cluster: LivingCluster) -> None:
    second_cluster.directory.rename(second_cluster.directory.with_name("gone"))  # its daemons still write
    assert left_of(second_cluster.directory) != []
    assert down(second_cluster.directory) == 0
    assert left_of(second_cluster.directory) == []


@pytest.mark.deep
def test_purge_leaves_what_the_cluster_did_not_write(second_cluster: LivingCluster) -> None:
    (second_cluster.directory / "mine").touch()
    assert down(second_cluster.directory, "--purge") == 0
    assert [path.name for path in second_cluster.directory.iterdir()] == ["mine"]
    assert down(second_cluster.directory, "--purge") == 2  # no cluster's any more
    (second_cluster.directory / "mine").unlink()


@pytest.mark.deep
@pytest.mark.parametrize("step", [deep("network"), deep("munged"), "slurmctld", deep("node1 at")])
def test_an_up_that_was_killed_can_be_repeated(second_cluster: LivingCluster, step: str) -> None:
    assert down(second_cluster.directory, "--purge") == 0
    command = [sys.executable, "-m", "hidl_cli", "cluster", "up", "--no-accounting", "--nodes", "1"]
    with subprocess.Popen(
        [*command, "--share", second_cluster.directory.parent, "--directory", second_cluster.directory],
        stderr=subprocess.PIPE,
        text=True,
    ) as killed:
        assert killed.stderr is not None
        assert any(step in line for line in killed.stderr)
        killed.kill()
    second_cluster.mend()
    assert second_cluster("srun", "hostname").stdout == "node1\n"


def test_down_ends_what_an_up_that_was_killed_has_made(second_cluster: LivingCluster) -> None:
    assert down(second_cluster.directory, "--purge") == 0
    command = [sys.executable, "-m", "hidl_cli", "cluster", "up", "--no-accounting", "--nodes", "1"]
    with subprocess.Popen([*command, "--directory", second_cluster.directory], stderr=subprocess.DEVNULL) as killed:
        while not left_of(second_cluster.directory):
            time.sleep(0.001)
        killed.kill()
    assert down(second_cluster.directory) == 0
    assert left_of(second_cluster.directory) == []


@pytest.mark.deep
def test_of_two_ups_at_once_the_second_finds_all_done(second_cluster: LivingCluster) -> None:
    assert down(second_cluster.directory, "--purge") == 0
    command = [sys.executable, "-m", "hidl_cli", "cluster", "up", "--no-accounting", "--nodes", "1"]
    both = [
        subprocess.Popen(
            [*command, "--share", second_cluster.directory.parent, "--directory", second_cluster.directory],
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    told = [process.communicate(timeout=patience(300))[1] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sum("slurmctld started" in text for text in told) == 1


@pytest.mark.deep
def test_two_clusters_that_come_up_at_once_do_not_take_each_others_network(
    second_cluster: LivingCluster, place: Path
) -> None:
    assert down(second_cluster.directory, "--purge") == 0
    others = [place / "a", place / "b"]
    command = [sys.executable, "-m", "hidl_cli", "cluster", "up", "--no-accounting", "--nodes", "1", "--directory"]
    try:
        ups = [subprocess.Popen([*command, directory], stderr=subprocess.DEVNULL) for directory in others]
        assert [process.wait(patience(120)) for process in ups] == [0, 0]
        assert len({Cluster(directory).settings.subnet for directory in others}) == 2
    finally:
        assert [down(directory, "--purge") for directory in others] == [0, 0]


# --- what cannot be ---------------------------------------------------------------------------------------------------


def test_where_there_is_no_cluster_env_says_how_to_get_one(place: Path) -> None:
    with pytest.raises(MissingPrecondition, match=f"no cluster in {place}"):
        _ = Cluster(place).environment_lines


@pytest.mark.parametrize("name", ["a b", "a#b", "a,b", "a\nb", "a%n", "x" * 100])
def test_a_directory_that_slurm_cannot_take_is_refused(place: Path, name: str) -> None:
    with pytest.raises(UsageError, match="invalid directory"):
        Cluster(place / name)


def test_the_sockets_of_jobs_fit_where_a_cluster_may_live() -> None:
    longest = "spool/node64/node64_999999.4294967291"  # where slurmstepd listens for the script of job 999999
    directories = [Path("/" + "x" * length) for length in range(40, 100)]
    fit = [directory for directory in directories if len(str(directory / longest)) <= 107]
    for directory in fit:
        Cluster(directory)
    for directory in directories[len(fit) :]:
        with pytest.raises(UsageError, match="sockets"):
            Cluster(directory)


@pytest.mark.parametrize("wish", [{"nodes": 0}, {"nodes": 65}, {"cpus_per_node": 0}])
def test_an_impossible_wish_is_refused(place: Path, wish: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="1 to"):
        Cluster(place).up(**wish)


def test_a_twin_is_refused_where_it_would_match_two_sites(place: Path) -> None:
    with pytest.raises(UsageError, match="match site test-cluster"):
        Cluster(place / "hidl" / "cluster").up(like="frontera")


def test_a_share_that_is_not_there_is_refused(hidl: Hidl, place: Path) -> None:
    refused = hidl("cluster", "up", "--directory", str(place), "--share", str(place / "absent"))
    assert (refused.returncode, "directory not found" in refused.stderr) == (2, True)


# --- the fixture itself -----------------------------------------------------------------------------------------------


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_cluster_of_tests_ends_with_the_tests_however_they_end(
    second_cluster: LivingCluster, place: Path, number: signal.Signals
) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom tests.cluster.cluster import living\n"
        "with living(Path(sys.argv[1]), nodes=1, accounting=False):\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    directory = place / "third"
    with subprocess.Popen(
        [sys.executable, "-c", script, directory], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as tests:
        assert tests.stdout is not None
        assert tests.stdout.readline() == b"up\n"
        tests.send_signal(number)
    until(lambda: not left_of(directory) and not directory.exists())
