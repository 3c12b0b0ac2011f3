"""What goes wrong with a real Slurm, its nodes and its daemons while a run is under way: nothing is lost."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cluster.cluster import living
from tests.conftest import Hidl, _environment
from tests.schedulers.slurm.conftest import METRICS, PARAMETERS, Bench, first_on_path, read
from tests.tiers import deep
from tests.waiting import patience, until

pytestmark = pytest.mark.real


@pytest.mark.deep
def test_the_time_limit_is_reached(bench: Bench) -> None:
    run = bench.running(bench.start("--time", "1:00", "--set", "sleep=300"))
    bench.cluster.use_up_the_time(bench.job(run))
    completed = bench.hidl("resume", run.name)
    assert completed.returncode == 8
    assert "reached its time limit" in completed.stderr
    assert "time limit 1:00" in completed.stderr
    assert all(bench.cluster.processes(node) == [] for node in bench.cluster.nodes)


def test_a_job_is_cancelled_by_someone_else(bench: Bench) -> None:
    run = bench.running(bench.start("--set", "sleep=300"))
    bench.cluster("scancel", bench.job(run))
    completed = bench.hidl("resume", run.name)
    assert completed.returncode == 8
    assert "was cancelled" in completed.stderr


@pytest.mark.deep
def test_a_lost_node_fails_the_run(bench: Bench) -> None:
    bench.change_site("--no-requeue", "--nodelist=node4")
    run = bench.running(bench.start("--set", "sleep=300"))
    bench.cluster.kill_node("node4")
    completed = bench.hidl("resume", run.name)
    assert completed.returncode == 8
    assert "lost a node" in completed.stderr
    assert "NODE_FAIL" in completed.stderr


@pytest.mark.deep
def test_a_run_whose_node_is_lost_waits_and_starts_again(bench: Bench) -> None:
    bench.change_site("--requeue")
    run = bench.running(bench.start("--set", f"go={bench.go}"))
    follower = bench.hidl.start("resume", run.name, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    bench.cluster.kill_node(read(run / "hosts").strip())
    bench.until_state(run, "PENDING")
    bench.go.touch()
    bench.cluster("scontrol", "update", f"JobId={bench.job(run)}", "StartTime=now")  # or it would wait two minutes
    _, told = follower.communicate(timeout=patience(300))
    assert follower.returncode == 0, told
    assert read(run / "stdout.log").count("here") == 2


@pytest.mark.deep
def test_the_controller_is_killed_and_comes_back_while_a_run_is_followed(bench: Bench) -> None:
    run = bench.running(bench.start("--set", f"go={bench.go}"))
    follower = bench.hidl.start("resume", run.name, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    bench.cluster.wait_until_saved()
    bench.cluster.kill("slurmctld")
    refused = bench.run()
    cancelled = bench.hidl("cancel", run.name)
    until(lambda: "has not responded" in (bench.status(run)["reason"] or ""))
    told = bench.status(run)
    bench.cluster.start("slurmctld")
    bench.go.touch()
    assert (refused.returncode, cancelled.returncode) == (7, 7)
    assert "does not respond" in refused.stderr
    assert told["state"] == "RUNNING"
    assert follower.wait(patience(180)) == 0


@pytest.mark.deep
def test_a_job_that_is_requeued_has_not_ended_though_the_controller_is_away_meanwhile(bench: Bench) -> None:
    """Its first attempt wrote CANCELLED, long ago by the time that the second begins."""
    bench.change_site("--requeue")
    run = bench.running(bench.start("--set", f"go={bench.go}"))
    bench.cluster("scontrol", "requeue", bench.job(run))
    until(lambda: '"CANCELLED"' in read(run / "status.json"))
    bench.until_state(run, "PENDING")
    document = json.loads(read(run / "status.json"))
    (run / "status.json").write_text(json.dumps(document | {"ended": document["ended"] - 600}))  # long ago
    bench.cluster.wait_until_saved()
    bench.cluster.kill("slurmctld")
    until(lambda: "has not responded" in (bench.status(run)["reason"] or ""))
    assert bench.status(run)["state"] == "PENDING"
    bench.cluster.start("slurmctld")
    bench.cluster("scontrol", "update", f"JobId={bench.job(run)}", "StartTime=now")  # or it would wait two minutes
    bench.until_state(run, "RUNNING")
    bench.go.touch()
    ended = bench.until_state(run, "COMPLETED")
    assert [attempt["state"] for attempt in ended["attempts"]] == ["CANCELLED"]


@pytest.mark.deep
def test_a_run_that_ends_while_the_controller_is_away_is_judged(bench: Bench) -> None:
    run = bench.running(bench.start("--set", f"go={bench.go}"))
    bench.cluster.wait_until_saved()
    bench.cluster.kill("slurmctld")
    bench.go.touch()
    assert bench.hidl("resume", run.name).returncode == 0


def test_a_number_that_was_given_again_is_another_job(bench: Bench) -> None:
    """The user's own other job has the number that the run's job had."""
    other = bench.cluster("sbatch", "--parsable", "--wrap", "sleep 300", "--output=/dev/null").stdout.strip()
    run = bench.start("--set", f"go={bench.go}", "--nodes", "1")
    mine = bench.job(run)
    ticket = json.loads(read(run / "job.json"))
    (run / "job.json").write_text(json.dumps(ticket | {"id": other}))
    bench.hidl("cancel", run.name)
    left = bench.cluster("squeue", "--noheader", "--states=PENDING,RUNNING", "--format=%i").stdout.split()
    bench.cluster("scancel", other, mine)
    assert other in left


@pytest.mark.parametrize("how", ["down", deep("absent")])
def test_no_accounting_is_needed(bench: Bench, how: str) -> None:
    if how == "down":
        bench.cluster.kill("slurmdbd")
    else:
        bench.cluster.switch(accounting=False)
    assert bench.run().returncode == 0
    run = bench.running(bench.start("--set", "sleep=300"))
    bench.cluster("scancel", bench.job(run))
    assert bench.hidl("resume", run.name).returncode == 8


@pytest.mark.deep
def test_a_job_that_was_taken_though_sbatch_had_no_answer_is_followed_and_not_submitted_twice(
    bench: Bench, tmp_path: Path
) -> None:
    # The controller hangs while sbatch asks it, until sbatch gives up after ten seconds; then it takes the job.
    pid = bench.cluster("pgrep", "-f", f"slurmctld -f {bench.cluster.conf}").stdout.split()[0]
    path = first_on_path(
        tmp_path,
        "sbatch",
        f'kill -STOP {pid}; "$real" "$@"; status=$?; kill -CONT {pid}; sleep 1; exit $status',
    )
    completed = bench.run("--json", PATH=path)
    assert completed.returncode == 0, completed.stderr
    (run,) = bench.hidl.runs.iterdir()
    told = bench.cluster("squeue", "-h", "--states=all", "-o", "%i|%Z").stdout.splitlines()
    assert [line for line in told if line.endswith(f"|{run}")] == [f"{bench.job(run)}|{run}"]


def test_hidl_is_killed_before_it_notes_the_job_and_the_run_is_found(bench: Bench, tmp_path: Path) -> None:
    path = first_on_path(tmp_path, "sbatch", f'"$real" "$@" && touch {tmp_path}/submitted && sleep 60')
    hidl = Hidl(bench.hidl.environment | {"PATH": path})
    command = hidl.start("run", "toy", "--site", "test-cluster", "--set", "sleep=4", stderr=subprocess.DEVNULL)
    until((tmp_path / "submitted").exists)
    command.kill()
    command.wait()
    (run,) = bench.hidl.runs.iterdir()
    assert '"id": null' in read(run / "job.json")
    assert bench.hidl("resume", run.name).returncode == 0
    assert bench.job(run).isdecimal()


@pytest.fixture
def own(tmp_path: Path, place: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A cluster of one node for one test. The runs lie on a file system of 4 MiB that it shares."""
    state = tmp_path_factory.mktemp("small_disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", state], check=True)
    try:
        with living(place / "hidl" / "cluster", data, tmp_path, state, nodes=1, accounting=False) as cluster:
            variables = cluster.environment | {"XDG_STATE_HOME": str(state)}
            hidl = Hidl(_environment(tmp_path, data) | variables)
            hidl.add_workload("toy", "toy.py", parameters=PARAMETERS, metrics=METRICS)
            yield Bench(hidl, cluster, tmp_path / "go")
    finally:
        subprocess.run(["umount", "-l", state], check=True)


@pytest.mark.deep
def test_a_job_that_the_controller_forgot_is_lost(own: Bench) -> None:
    run = own.running(own.start("--set", "sleep=300", "--no-check"))
    own.cluster.kill("slurmctld")
    for file in (own.cluster.directory / "state").glob("job_state*"):
        file.unlink()
    own.cluster.start("slurmctld")
    completed = own.hidl("resume", run.name)
    assert completed.returncode == 8
    assert "disappeared without recording its end" in completed.stderr


@pytest.mark.deep
def test_a_full_disk_in_the_run_directory_is_reported_and_the_end_is_not_lost(own: Bench) -> None:
    run = own.running(own.start("--set", f"go={own.go}", "--no-check"))  # so small a disk is found before
    filler = run.parent / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    own.go.touch()
    completed = own.hidl("resume", run.name)
    assert completed.returncode == 8
    assert "No space left on device" in completed.stderr
    filler.unlink()
    assert own.status(run)["state"] == "FAILED"
    assert "FAILED" in read(run / "status.json")
