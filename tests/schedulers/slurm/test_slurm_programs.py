"""How Slurm's programs are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from hidl_cli.schedulers import slurm
from hidl_cli.schedulers.backend import NoAnswer, NoProgram, complaint


def program(directory: Path, name: str, script: str) -> None:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands first on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize("name", ["SLURM_CONF", "SLURM_JWT", "HOME", "SLURMISH"])
def test_what_says_where_slurm_is_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert slurm.PROGRAMS.environment()[name] == "x"


@pytest.mark.parametrize(
    "name",
    [
        "SLURM_JOB_ID",
        "SLURM_NTASKS",
        "SLURM_TIME_FORMAT",
        "SBATCH_TIMELIMIT",
        "SQUEUE_STATES",
        "SACCT_FORMAT",
        "PMI_RANK",
    ],
)
def test_what_an_enclosing_job_or_a_users_default_says_goes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert name not in slurm.PROGRAMS.environment()


def test_a_default_of_the_users_stays_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    assert slurm.PROGRAMS.environment(["SBATCH_ACCOUNT"])["SBATCH_ACCOUNT"] == "mine"


@pytest.mark.parametrize(
    "words",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
        "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
        'squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2": No such file or directory',
        "squeue: fatal: Could not establish a configuration source",
        "sbatch: error: Batch job submission failed: Slurm temporarily unable to accept job, sleeping and retrying",
    ],
)
def test_that_nobody_answered_is_reported_by_its_words(path: Path, words: str) -> None:
    program(path, "squeue", f"cat >&2 <<'EOF'\n{words}\nEOF\nexit 1")
    with pytest.raises(NoAnswer):
        slurm.call("squeue")


def test_a_refusal_is_an_answer(path: Path) -> None:
    program(path, "sbatch", "echo 'sbatch: error: invalid partition specified: nope' >&2; exit 1")
    assert complaint(slurm.call("sbatch")) == "invalid partition specified: nope"


def test_a_program_that_takes_too_long_has_no_answer(path: Path) -> None:
    program(path, "squeue", "sleep 60")
    with pytest.raises(NoAnswer, match=r"timed out after 0\.2 s"):
        slurm.call("squeue", timeout=0.2)


def test_a_program_that_is_not_there_is_distinguished_from_silence(path: Path) -> None:
    with pytest.raises(NoProgram):
        slurm.call("no-such-program")


@pytest.mark.parametrize(
    ("words", "status"),
    [("Slurmctld(primary) at a is UP", 0), ("Slurmctld(primary) at a is DOWN\\nSlurmctld(backup) at b is UP", 1)],
)
def test_one_controller_that_is_up_is_enough(path: Path, words: str, status: int) -> None:
    program(path, "scontrol", f"printf '{words}\\n'; exit {status}")
    slurm.ping()


def test_no_controller_is_reported_with_its_name(path: Path) -> None:
    program(path, "scontrol", "echo 'Slurmctld(primary) at a is DOWN'; echo '*** RESTORE ***'; exit 1")
    with pytest.raises(NoAnswer, match=r"Slurmctld\(primary\) at a is DOWN"):
        slurm.ping()


def test_the_clusters_name_is_read_from_the_configuration(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(path / "state"))
    slurm.this_cluster.cache_clear()
    program(path, "scontrol", "echo 'Configuration data as of today'; echo 'ClusterName             = alpha'")
    assert slurm.this_cluster() == "alpha"
    slurm.this_cluster.cache_clear()


@pytest.mark.parametrize(
    ("words", "program_name", "answer", "fact"),
    [
        ("Invalid partition name specified", "sinfo", "debug small", "available partitions: debug, small"),
        ("Invalid account or account/partition combination specified", "sacctmgr", "a b", "your accounts: a, b"),
        ("Invalid qos specification", "sacctmgr", "normal", "available qualities of service: normal"),
        ("Invalid feature specification", "sinfo", "'(null)' v100", "available node features: v100"),
    ],
)
def test_a_refusal_is_reported_with_what_the_site_has(
    path: Path, words: str, program_name: str, answer: str, fact: str
) -> None:
    program(path, program_name, f'for name in {answer}; do echo "$name"; done')
    assert slurm.explain(words, {})[0] == fact


def test_a_refusal_stands_where_the_sites_values_are_not_to_be_had(path: Path) -> None:
    program(path, "sacctmgr", "echo 'Problem talking to the database' >&2; exit 1")
    assert slurm.explain("Invalid qos specification", {})[0] is None
