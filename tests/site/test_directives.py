"""Options in site files that would change what a run is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.inputs.problems import render
from hidl_cli.site.checks import RULES
from hidl_cli.site.directives import option_names, reject_argument, reject_directive, reject_variable
from tests.conftest import Hidl

SITE: dict[str, Any] = {
    "name": "mine",
    "title": "A cluster",
    "launchers": ["srun"],
    "node_types": {},
    "partitions": {},
    "default_partition": None,
}

REJECTED = {
    "slurm": (
        "--array=1-2",
        "--array 1-2",
        "-a 1-2",
        "-a1-2",
        "--arr=1-2",
        "-Ha1-2",
        "--hold --array=1-2",
        "--output=x.log",
        "--out=x.log",
        "-ox.log",
        "-e x",
        "--open-mode=truncate",
        "--nodes=2",
        "-N2",
        "--ntasks=4",
        "-n 4",
        "--ntasks-per-node=3",
        "--ntasks-per-gpu=1",
        "--cpus-per-task=3",
        "-c3",
        "--job-name=x",
        "-J x",
        "--time=1",
        "-t1",
        "--time-min=1",
        "--partition=p",
        "-pp",
        "--account=a",
        "--qos=q",
        "-C x",
        "--mem=0",
        "--mem-per-gpu=4G",
        "--gpus=1",
        "-G1",
        "--gpus-per-task=1",
        "--gres=gpu:1",
        "--gres=lscratch:10,gpu:a100:1",
        "--gres=gres:gpu:1",
        "--tres-per-task=gres/gpu:1",
        "--export=NONE",
        "--exclusive",
        "--oversubscribe",
        "-s",
        "--signal=B:USR1",
        "--signal=B:USR1@60",
        "--signal=RB:USR1@60",
        "--signal B:10",
        "--chdir=/tmp",
        "-D/tmp",
        "--wrap=true",
        "--wait",
        "-W",
        "--test-only",
        "--distribution=cyclic",
        "--comment='x",
    ),
    "pbs": (
        "-J 1-2",
        "-J1-2",
        "-hJ1-2",
        "-o out",
        "-j oe",
        "-k doe",
        "-N x",
        "-q x",
        "-A x",
        "-l select=2",
        "-lselect=2:ncpus=4",
        "-l filesystems=home,walltime=1:00:00",
        "-l place=free",
        "-l nodes=2",
        "-V",
        "-v A=1",
        "-I",
        "-z",
        "-C '#X'",
        "-S /bin/tcsh",
        "-W block=true",
        "-W depend=afterok:1,sandbox=PRIVATE",
    ),
    "lsf": (
        "-J x[1-3]",
        "-Jx",
        "-o out",
        "-oo out",
        "-n 4",
        "-n4",
        "-nnodes 3",
        "-W 10",
        "-W10",
        "-q x",
        "-P x",
        "-env none",
        "-x",
        "-Is",
        "-K",
        "-cwd /tmp",
        "-Jd text",
        "-wa USR1 -wt 2",
        "-hostfile f",
        "-alloc_flags gpumps -n 4",
    ),
    "flux": (
        "--cc=1-2",
        "--output=x",
        "--outp=x",
        "--nodes=2",
        "-N2",
        "-n 4",
        "--nslots=4",
        "-x",
        "--job-name=x",
        "--time-limit=1m",
        "-t 1m",
        "-q x",
        "-B x",
        "--requires=x",
        "--env=A=1",
        "--signal=USR1@60s",
        "--cwd=/tmp",
        "--dry-run",
        "-o output.stdout.path=x",
        "--setopt=output.stdout.type=kvs",
    ),
    "local": ("--hold",),
    "ssh": ("--hold",),
}
ACCEPTED = {
    "slurm": (
        "--hint=nomultithread",
        "-x node7",
        "--hold",
        "-H",
        "--requeue",
        "--no-requeue",
        "--nodelist=n4",
        "-w n4",
        "--exclude=n5",
        "--switches=1",
        "--gres=lscratch:10",
        "--licenses=scratch",
        "--signal=USR1@60",
        "--signal=R:USR1@60",
        "--exclusive=user",
        "--comment='a --array of words'",
        "--mail-user=a@b.c --mail-type=END",
        "--no-kill",
        "--mem-bind=local",
        "--wait-all-nodes=1",
        "--network=single_node_vni",
        "-M other",
        "--constraint-of-no-slurm=x",
        "--begin=now+1hour",
        "-d singleton",
    ),
    "pbs": (
        "-l filesystems=home:eagle",
        "-h",
        "-r y",
        "-p 10",
        "-l vmem=10gb",
        "-W umask=022",
        "-S /bin/bash",
        "-m abe -M a@b.c",
        "-P x",
    ),
    "lsf": ('-alloc_flags "gpumps smt1"', "-H", "-M 1000", "-app x", "-G x", "-R 'span[hosts=1]'", "-We 5", "-sp 10"),
    "flux": (
        "--urgency=0",
        "--setattr=system.bank=x",
        "-o exit-timeout=10s",
        "--dependency=afterok:f1",
        "--begin-time=+1h",
    ),
    "pjm": ("-L node=1",),
    "of-a-plug-in": ("--array=1-2",),
}


def cases(table: dict[str, tuple[str, ...]]) -> list[Any]:
    return [pytest.param(scheduler, text, id=f"{scheduler} {text}") for scheduler in table for text in table[scheduler]]


@pytest.mark.parametrize(("scheduler", "text"), cases(REJECTED))
def test_options_that_change_what_a_run_is_are_rejected(scheduler: str, text: str) -> None:
    assert reject_directive(scheduler, text, {}) is not None


@pytest.mark.parametrize(("scheduler", "text"), cases(ACCEPTED))
def test_other_options_are_accepted(scheduler: str, text: str) -> None:
    assert reject_directive(scheduler, text, {}) is None


def test_options_that_a_policy_makes_hidl_write_are_rejected() -> None:
    assert reject_directive("slurm", "--gres=lscratch:10", {"gpus": "gres"})
    assert reject_directive("lsf", "-G x", {"account_option": "-G"})
    assert reject_directive("lsf", "-P x", {"account_option": "-G"}) is None


@pytest.mark.parametrize(
    ("launcher", "word"),
    [
        ("srun", "--ntasks=3"),
        ("srun", "-n3"),
        ("srun", "--label"),
        ("srun", "-ul"),
        ("srun", "--mpi=none"),
        ("srun", "--output=x"),
        ("mpiexec", "-ppn"),
        ("mpiexec", "-np"),
        ("mpiexec", "-l"),
        ("mpirun", "--np"),
        ("mpirun", "-n"),
        ("mpirun", "--tag-output"),
        ("mpirun_rsh", "-np"),
        ("jsrun", "-n"),
        ("jsrun", "--nrs=3"),
        ("flux", "-N3"),
        ("pals", "--ppn"),
        ("ibrun", "-n"),
    ],
)
def test_arguments_that_hidl_gives_launchers_are_rejected(launcher: str, word: str) -> None:
    assert reject_argument(launcher, word) is not None


@pytest.mark.parametrize(
    ("launcher", "word"),
    [
        ("srun", "--cpu-bind=map_cpu:0"),
        ("srun", "--kill-on-bad-exit=0"),
        ("srun", "--unbuffered"),
        ("mpiexec", "-launcher"),
        ("mpiexec", "ssh"),
        ("mpirun", "--mca"),
        ("mpirun", "--bind-to"),
        ("mpirun_rsh", "-export"),
        ("jsrun", "--smpiargs=-gpu"),
        ("flux", "-o"),
        ("of-a-plug-in", "-n"),
    ],
)
def test_other_arguments_of_launchers_are_accepted(launcher: str, word: str) -> None:
    assert reject_argument(launcher, word) is None


@pytest.mark.parametrize(
    "name", ["RANK", "SLURM_NTASKS", "HIDL_RUN_ID", "OMP_NUM_THREADS", "SLURM_STDOUTMODE", "PMI_RANK"]
)
def test_variables_of_a_rank_are_rejected(name: str) -> None:
    assert reject_variable(name) is not None


@pytest.mark.parametrize(
    "name",
    [
        "NCCL_SOCKET_IFNAME",
        "SLURM_CPU_BIND",
        "SLURM_DISTRIBUTION",
        "PMI_MMAP_SYNC_WAIT_TIME",
        "PMIX_MCA_gds",
        "OMPI_MCA_btl",
    ],
)
def test_other_variables_are_accepted(name: str) -> None:
    assert reject_variable(name) is None


def problems(tmp_path: Path, **changes: Any) -> list[str]:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump({**SITE, "scheduler": "slurm", **changes}, sort_keys=False))
    return [render(problem) for problem in examine(RULES, at_path("site", file)).problems]


def test_each_key_that_ends_in_a_job_script_is_checked_with_its_line(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        policies={"directives": ["--hint=nomultithread", "--array=1-2"], "environment": {"SLURM_NTASKS": "3"}},
        mpi={
            "m": {
                "family": "mpich",
                "launcher_arguments": {"srun": ["--ntasks=1"]},
                "environment": {"WORLD_SIZE": "3"},
                "with_gpus": {"launcher_arguments": {"mpiexec": ["-np", "3"]}},
            }
        },
    )
    lines = (tmp_path / "mine.yaml").read_text().splitlines()
    assert len(found) == 5
    for text, word in zip(found, ["--array=1-2", "SLURM_NTASKS", "--ntasks=1", "WORLD_SIZE", "-np"], strict=True):
        number = next(number for number, line in enumerate(lines, start=1) if word in line)
        assert f"mine.yaml:{number}:" in text
    assert "error: `--array` starts several jobs in one run directory" in found[0]
    assert "= expected: `hidl run --matrix NAME=VALUE,VALUE`" in found[0]


def test_hidl_site_check_and_hidl_run_reject_an_array(hidl: Hidl) -> None:
    file = hidl.config / "sites" / "arr.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("name: arr\ntitle: A sweep\nextends: test-cluster\npolicies: {directives: [--array=1-2]}\n")
    for words in (["site", "check", "arr"], ["run", "mpi-sanity", "--site", "arr", "--dry-run"]):
        completed = hidl(*words)
        assert completed.returncode == 3
        assert f"{file}:4:" in completed.stderr
        assert "--matrix" in completed.stderr


def test_names_of_options_have_their_dashes() -> None:
    assert option_names("slurm", "--begin=now -Ha1-2") == ["--begin", "-H", "-a"]
    assert option_names("lsf", "-sp 10 -w 'done(1)'") == ["-sp", "-w"]
    assert option_names("of-a-plug-in", "--begin=now") == []
