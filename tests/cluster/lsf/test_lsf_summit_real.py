"""Jobs and hidl's runs on the twin of Summit: real nodes, real MPI, a stand-in LSF and jsrun."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.lsf.conftest import Twin
from tests.conftest import Hidl
from tests.tiers import deep
from tests.waiting import until

NODES = ("ac922-001", "ac922-002")


@pytest.fixture
def fast(summit: Twin) -> Iterator[Twin]:
    """A minute of a run limit takes two seconds, and signals follow each other soon."""
    summit.set(minute=2.0, interval=1.0)
    yield summit
    summit.set(minute=60.0, interval=10.0)


def lines(printed: str) -> list[str]:
    """What ranks printed, sorted; without jsrun's own lines and PRRTE's warning of a race (setpgid)."""
    return sorted(line for line in printed.splitlines() if not re.match(r"jsrun: |\[.*plm:ssh: Warning: setpgid", line))


def run(summit: Twin, hidl: Hidl, *arguments: str) -> tuple[int, str, Path]:
    """The exit code of ``hidl run`` on two nodes of Summit, what it said, and the run's directory."""
    done = summit.hidl(hidl, "run", *arguments, "--nodes", "2", "--ranks-per-node", "2", "--account", "ABC")
    newest = max(hidl.runs.iterdir(), key=lambda entry: entry.name)
    return done.returncode, done.stdout + done.stderr, newest


def left_over(summit: Twin, word: str) -> list[str]:
    """The processes of jobs on the nodes whose command line holds the word."""
    return [line for node in (*NODES, "batch1") for line in summit.cluster.processes(node) if word in line]


# --- LSF --------------------------------------------------------------------------------------------------------------


def test_the_script_runs_on_the_launch_host_and_the_ranks_on_the_compute_hosts(summit: Twin) -> None:
    status, printed = summit.job("hostname; jsrun -n2 -r1 hostname -s")
    assert (status, lines(printed)) == (0, ["ac922-001", "ac922-002", "batch1"])


def test_the_host_file_lists_the_launch_host_first_with_one_slot(summit: Twin) -> None:
    _, printed = summit.job('uniq -c "$LSB_DJOB_HOSTFILE"; echo $LSB_MCPU_HOSTS')
    assert [line.split() for line in printed.splitlines()] == [
        ["1", "batch1"],
        ["42", NODES[0]],
        ["42", NODES[1]],
        ["batch1", "1", NODES[0], "42", NODES[1], "42"],
    ]


def test_a_job_leaves_nothing_on_its_hosts(summit: Twin) -> None:
    leave = "setsid sleep 71.5 > /dev/null 2>&1 & sleep 0.2"
    summit.job(f"jsrun -n2 -r1 sh -c '{leave}'; {leave}")
    assert left_over(summit, "sleep 71.5") == []


def test_jobs_outlive_the_daemon(summit: Twin, tmp_path: Path) -> None:
    done = summit("bsub", "-P", "ABC", "-W", "5", "-o", str(tmp_path / "out"), "sleep 2; echo through")
    number = done.stdout.partition("<")[2].partition(">")[0]
    until((summit.directory / "jobs" / number / "alive").is_file)
    summit.cluster.kill("mbatchd")
    unanswered = summit("bjobs", LSB_NTRIES="1").stderr
    summit.cluster.start("mbatchd")
    until(lambda: "DONE" in summit("bjobs", "-a", number).stdout)
    assert ("LSF is down" in unanswered, "through" in (tmp_path / "out").read_text()) == (True, True)


def test_the_clusters_status_reports_what_lsf_says_of_its_hosts(summit: Twin) -> None:
    like = ["--like", "summit", "--directory", str(summit.cluster.directory)]
    found = json.loads(summit.cluster(*Hidl.command("cluster", "status", *like, "--json")).stdout)
    states = {node["name"]: node["state"] for node in found["nodes"]}
    assert ([daemon["name"] for daemon in found["daemons"]], found["lsf_envdir"]) == (
        ["mbatchd"],
        str(summit.directory),
    )
    assert (states[NODES[0]], states["batch1"]) == ("ok", None)


# --- jsrun ------------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_jsrun_ends_with_the_status_of_the_rank_that_failed(summit: Twin) -> None:
    ends = '[ "$JSM_NAMESPACE_RANK" = 0 ] || eval "$0"; sleep 1'
    each = f"jsrun -n2 -r1 sh -c '{ends}' \"$script\" 2> /dev/null; echo $?"
    _, printed = summit.job(f"for script in 'exit 7' 'kill -SEGV $$' 'kill -KILL $$' 'exit 0'; do {each}; done")
    assert lines(printed) == ["0", "137", "139", "7"]


def test_a_program_that_is_not_there_is_named(summit: Twin) -> None:
    status, printed = summit.job("jsrun -n1 /nonexistent/program")
    assert (status, "/nonexistent/program: No such file or directory" in printed) == (127, True)


def test_jsrun_outside_of_a_job_has_no_hosts(summit: Twin) -> None:
    done = summit("jsrun", "-n1", "hostname")
    assert (done.returncode, "not in an LSF job" in done.stderr) == (1, True)


def test_ranks_get_the_whole_environment_and_no_more_than_jsrun_and_the_runtime_add(summit: Twin) -> None:
    _, printed = summit.job(
        "told() { sort -z | tr '\\0\\n' '\\n '; }; env -0 | told > job; jsrun -n1 env -0 | told > rank; diff job rank",
        "-cwd",
        str(summit.cluster.directory.parent),
        HIDL_TEST="a b;$x 'y'\n\"z\"",
    )
    changed = [line for line in printed.splitlines() if line[:2] in ("< ", "> ")]
    names = {line[2:].partition("=")[0] for line in changed}
    known = ("JSM_NAMESPACE_", "OMPI_", "PMIX_", "PRTE_", "PMI_", "OPAL_PREFIX", "OMP_")
    assert ([line for line in changed if line[0] == "<"], {n for n in names if not n.startswith(known)}) == ([], set())


def test_environment_options(summit: Twin) -> None:
    _, printed = summit.job(
        "jsrun -n2 -r1 -E 'ONE=1 2' -D HIDL_TEST -F 'TWO=$JSM_NAMESPACE_RANK' "
        "sh -c 'echo \"$ONE ${HIDL_TEST-unset} $TWO\"'",
        HIDL_TEST="set",
    )
    assert lines(printed) == ["1 2 unset 0", "1 2 unset 1"]


def test_a_rank_is_bound_to_cores_of_its_own(summit: Twin) -> None:
    _, printed = summit.job("jsrun -n2 -r2 -c21 -bpacked:21 sh -c 'taskset -pc $$ | cut -d: -f2; nproc'")
    assert lines(printed)[2:] == ["84", "84"] if len(lines(printed)) == 4 else False
    assert len(set(lines(printed)[:2])) == 2


def test_ranks_see_the_gpus_of_their_resource_set(summit: Twin) -> None:
    _, printed = summit.job("jsrun -n4 -r2 -g3 sh -c 'echo $JSM_NAMESPACE_RANK $CUDA_VISIBLE_DEVICES'")
    assert lines(printed) == ["0 0,1,2", "1 3,4,5", "2 0,1,2", "3 3,4,5"]


@pytest.mark.deep
def test_steps_at_the_same_time_do_not_share_cores(summit: Twin) -> None:
    _, printed = summit.job(
        "for step in 1 2; do jsrun -n1 -c42 -r1 sh -c 'date +%s.%N; sleep 1; date +%s.%N' & done; wait", "-nnodes", "1"
    )
    first, second, third, fourth = (float(line) for line in printed.splitlines() if line[0].isdigit())
    assert first < second < third < fourth


def test_output_can_go_to_a_file_for_each_rank(summit: Twin, tmp_path: Path) -> None:
    summit.job(f"jsrun -n2 -r1 -e individual -o {tmp_path}/out sh -c 'echo $JSM_NAMESPACE_RANK'")
    assert [(tmp_path / f"out_0_{rank}").read_text() for rank in (0, 1)] == ["0\n", "1\n"]


# --- hidl -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mpi", ["spectrum-mpi", deep("mvapich2-gdr")])
def test_a_run_passes_over_two_hosts(summit: Twin, on_summit: Hidl, mpi: str) -> None:
    status, said, directory = run(summit, on_summit, "mpi-sanity", "--site", "mine", "--mpi", mpi)
    assert status == 0, said
    hosts = (directory / "hosts").read_text().split()
    cores = re.search(r"^ *cores_per_rank +(\d+)", said, re.MULTILINE)
    assert (hosts, cores and cores[1]) == (list(NODES), "21")
    assert "cannot be preloaded" not in (directory / "stderr.log").read_text()


@pytest.mark.deep
def test_a_run_that_reaches_its_limit_has_timed_out(fast: Twin, on_summit: Hidl) -> None:
    add_toy(on_summit)
    status, said, directory = run(fast, on_summit, "toy", "--site", "mine", "--set", "sleep=60", "--time", "3")
    state = json.loads((directory / "status.json").read_text())["state"]
    assert (status, state, "TERM_RUNLIMIT" in said) == (8, "TIMEOUT", True)
    assert left_over(fast, "toy.py") == []


@pytest.mark.deep
def test_a_cancelled_run_leaves_nothing(summit: Twin, on_summit: Hidl) -> None:
    add_toy(on_summit)
    _, said, directory = run(summit, on_summit, "toy", "--site", "mine", "--set", "sleep=60", "--no-wait")
    log = directory / "stdout.log"
    until(lambda: log.is_file() and "rank" in log.read_text())
    done = summit.hidl(on_summit, "cancel", directory.name)
    state = json.loads((directory / "status.json").read_text())["state"]
    assert (done.returncode, state, left_over(summit, "toy.py")) == (0, "CANCELLED", []), said


@pytest.mark.deep
def test_a_rank_that_fails_fails_the_run(summit: Twin, on_summit: Hidl) -> None:
    add_toy(on_summit)
    status, said, directory = run(summit, on_summit, "toy", "--site", "mine", "--set", "fail=true")
    assert (status, json.loads((directory / "status.json").read_text())["exit_status"]) == (8, 1), said


@pytest.mark.deep
def test_what_the_file_does_not_know_lsf_refuses(summit: Twin, on_summit: Hidl) -> None:
    """A user's file with wider limits than the site has: the job is refused when it is submitted."""
    file = on_summit.config / "sites" / "mine.yaml"
    site = yaml.safe_load(file.read_text())
    site["partitions"] = {
        "batch": {"node_type": "ac922", "max_nodes": 9999, "max_wall": "99:00:00", "max_wall_by_nodes": []}
    }
    site["policies"] = {"account": "optional", "time": "optional"}
    file.write_text(yaml.safe_dump(site))
    common = ["run", "mpi-sanity", "--site", "mine", "--nodes"]
    no_account = summit.hidl(on_summit, *common, "2")
    too_long = summit.hidl(on_summit, *common, "2", "--account", "ABC", "--time", "49:00:00")
    too_many = summit.hidl(on_summit, *common, "5000", "--account", "ABC")
    assert [
        (done.returncode, words in done.stderr)
        for done, words in [
            (no_account, "Request aborted by esub. Job not submitted."),
            (too_long, "RUNLIMIT: Cannot exceed queue's hard limit(s)."),
            (too_many, "Too many processors requested."),
        ]
    ] == [(6, True)] * 3


@pytest.mark.deep
def test_a_run_whose_launch_host_dies_lost_a_node(summit: Twin, on_summit: Hidl) -> None:
    add_toy(on_summit)
    _, _, directory = run(summit, on_summit, "toy", "--site", "mine", "--set", "sleep=600", "--no-wait")
    log = directory / "stdout.log"
    until(lambda: log.is_file() and "rank" in log.read_text())
    try:
        summit.cluster.kill_node("batch1")
        done = summit.hidl(on_summit, "resume", directory.name)
        state = json.loads((directory / "status.json").read_text())["state"]
        assert (done.returncode, state) == (8, "NODE_FAIL")
    finally:
        summit.cluster.mend()


def add_toy(hidl: Hidl) -> None:
    """Give hidl the workload ``toy``."""
    hidl.add_workload(
        "toy",
        "toy.py",
        parameters={"sleep": {"type": "float", "default": 0}, "fail": {"type": "bool", "default": False}},
        metrics={"rate": {"unit": "items/s", "better": "higher"}},
    )
