"""LSF's commands as users and hidl's probes call them, on a stand-in LSF of this machine."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hidl_cli.site.probes import lsf as probe
from hidl_cli.site.probes.host import ThisHost
from tests.schedulers.lsf.conftest import FakeLsf
from tests.waiting import patience, until

pytestmark = pytest.mark.real


def called(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run one of LSF's commands."""
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=patience(60), check=False)


def stats(lsf: FakeLsf, *ids: str) -> list[str]:
    """The states of jobs."""
    return [lsf.job(id).stat for id in ids]


def test_bsub_says_in_its_first_line_that_it_is_a_stand_in(lsf: FakeLsf) -> None:
    done = called("bsub", "true")
    assert (done.stderr.splitlines()[0], done.stdout) == (
        "bsub: hidl's stand-in for IBM Spectrum LSF; cluster fake.",
        "Job <101> is submitted to default queue <batch>.\n",
    )


def test_bsub_can_wait_for_the_job_and_ends_with_its_status(lsf: FakeLsf) -> None:
    done = called("bsub", "-K", "exit 7")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (7, "<<Job is finished>>")


def test_an_interactive_job_has_the_streams_of_bsub(lsf: FakeLsf) -> None:
    done = called("bsub", "-I", "sh", "-c", 'read line; echo "$line of $LSB_JOBID"; exit 3', text="words\n")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (3, "words of 101")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_an_interactive_job_ends_with_its_client(lsf: FakeLsf, tmp_path: Path, number: int) -> None:
    started = tmp_path / "started"
    client = subprocess.Popen(["bsub", "-I", "sh", "-c", f"touch {started}; exec sleep 600"])
    until(started.exists)
    client.send_signal(number)
    client.wait(timeout=patience(60))
    until(lambda: stats(lsf, "101") == ["EXIT"])
    assert lsf.job("101").exit_reason == "TERM_OWNER"


def test_ctrl_c_is_for_the_program_of_an_interactive_job(lsf: FakeLsf, tmp_path: Path) -> None:
    started = tmp_path / "started"
    program = f"trap 'kill %1; exit 4' INT; sleep 600 & touch {started}; wait"
    client = subprocess.Popen(["bsub", "-I", "bash", "-c", program], start_new_session=True)
    until(started.exists)
    os.killpg(client.pid, signal.SIGINT)
    assert client.wait(timeout=patience(60)) == 4
    until(lambda: stats(lsf, "101") == ["EXIT"])
    assert (lsf.job("101").exit_code, lsf.job("101").exit_reason) == ("4", "")


def test_the_options_of_a_script_count_less_than_those_of_the_command_line(lsf: FakeLsf, tmp_path: Path) -> None:
    lsf.set(parse_script=True)
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/sh\n#BSUB -nnodes 3 -q debug # of mine\n#BSUB -W10\ntrue\n")
    called("bsub", "-q", "batch", str(script))
    given = lsf.job("101").options
    assert [given[name] for name in ("-nnodes", "-q", "-W")] == ["3", "batch", "0:10"]


def test_a_host_is_given_to_one_job_only(lsf: FakeLsf) -> None:
    lsf.set(hosts={"a": {}, "b": {}})
    called("bsub", "-nnodes", "2", "sleep 60")
    called("bsub", "true")
    until(lambda: stats(lsf, "101") == ["RUN"], within=10)
    time.sleep(0.3)
    waiting = stats(lsf, "102")
    called("bkill", "101")
    until(lambda: stats(lsf, "102") == ["DONE"])
    assert waiting == ["PEND"]


@pytest.mark.parametrize(
    ("script", "dependency", "stat", "reason"),
    [
        ("true", "done(101)", "DONE", ""),
        ("false", "101", "PEND", "Dependency condition invalid or never satisfied"),
        ("false", 'exit(101) && started("first")', "DONE", ""),
        ("sleep 60", "ended(101)", "PEND", "Job dependency condition not satisfied"),
        ("true", "done(7)", "PEND", "Dependency condition invalid or never satisfied"),
    ],
)
def test_a_job_waits_for_others(lsf: FakeLsf, script: str, dependency: str, stat: str, reason: str) -> None:
    called("bsub", "-J", "first", script)
    called("bsub", "-w", dependency, "true")
    until(
        lambda: (lsf.job("102").stat, lsf.job("102").pend_reason) == (stat, reason),
        within=10,
        otherwise=lambda: lsf.job("102"),
    )


def test_slots_are_given_as_whole_nodes(lsf: FakeLsf) -> None:
    called("bsub", "-n", "43", "true")
    assert lsf.job("101").nodes == 2


def test_bsub_says_what_it_does_nothing_about(lsf: FakeLsf) -> None:
    done = called("bsub", "-R", "select[mem>1]", "-N", "true")
    assert done.stderr.splitlines()[1] == "bsub: this stand-in ignores -R -N."


def test_without_a_limit_of_the_queue_a_job_has_none(lsf: FakeLsf) -> None:
    lsf.set(queues={"batch": {}})
    called("bsub", "true")
    assert "-W" not in lsf.job("101").options


def test_bjobs_reports_why_a_job_waits(lsf: FakeLsf) -> None:
    lsf.set(pending="Load information unavailable")
    called("bsub", "true")
    time.sleep(0.3)
    assert "PENDING REASONS:\nLoad information unavailable;" in called("bjobs", "-l", "101").stdout


def test_a_job_that_waits_can_be_changed(lsf: FakeLsf) -> None:
    lsf.set(pending="Not yet")
    called("bsub", "true")
    done = called("bmod", "-W", "20", "101")
    assert (done.stdout, lsf.job("101").options["-W"]) == ("Parameters of job <101> are being changed\n", "0:20")


def test_what_a_job_has_printed_can_be_seen_while_it_runs(lsf: FakeLsf) -> None:
    called("bsub", "echo so far; sleep 60")
    until(lambda: not ("so far" not in called("bpeek", "101").stdout), within=10)


def test_the_report_names_the_job_in_its_files_name(lsf: FakeLsf, tmp_path: Path) -> None:
    called("bsub", "-K", "-o", str(tmp_path / "out.%J"), "-e", str(tmp_path / "err.%J"), "echo one; echo two >&2")
    report = (tmp_path / "out.101").read_text()
    assert ("Successfully completed." in report, report.endswith("one\n"), (tmp_path / "err.101").read_text()) == (
        True,
        True,
        "two\n",
    )


def test_a_directory_that_is_not_there_ends_the_job(lsf: FakeLsf) -> None:
    called("bsub", "-K", "-cwd", "/nonexistent", "true")
    assert lsf.job("101").exit_reason.startswith("TERM_CWD_NOTEXIST")


@pytest.mark.parametrize(
    ("given", "expected"),
    [("all", "1 of mine"), ("none", "0 "), ("OWN", "0 of mine"), ("all,~HIDL_TEST", "0 of mine"), ("OWN=x", "0 x")],
)
def test_env_chooses_what_of_the_environment_the_job_gets(
    lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, expected: str
) -> None:
    monkeypatch.setenv("HIDL_TEST", "1")
    monkeypatch.setenv("OWN", "of mine")
    called("bsub", "-K", "-env", given, f'echo "${{HIDL_TEST:-0}} $OWN" > {tmp_path}/found')
    assert (tmp_path / "found").read_text() == f"{expected}\n"


def test_unknown_options_are_refused(lsf: FakeLsf) -> None:
    done = called("bsub", "--nodes=2", "true")
    assert (done.returncode, "bsub: illegal option -- nodes=2" in done.stderr) == (255, True)


def test_without_its_daemon_nobody_answers(lsf: FakeLsf, monkeypatch: pytest.MonkeyPatch) -> None:
    lsf.end_daemon()
    monkeypatch.setenv("LSB_NTRIES", "1")
    done = called("bjobs")
    assert (done.returncode, done.stderr) == (255, "LSF is down. Please wait ...\n")


def test_hidls_probe_reads_the_cluster(lsf: FakeLsf) -> None:
    lsf.set(hosts={"a01n01": {"memory_gib": 512}, "a01n02": {"memory_gib": 512}})
    found = probe.probe(ThisHost())
    assert found is not None
    queue = found.queues[0]
    assert (found.cluster, found.version, [node.name for node in found.nodes], found.nodes[0].hardware.memory_mib) == (
        "fake",
        "10.1.0.9",
        ["a01n01", "a01n02"],
        512 * 1024,
    )
    assert (queue.name, queue.is_default, queue.max_wall, queue.restricted) == ("batch", True, "02:00:00", False)
