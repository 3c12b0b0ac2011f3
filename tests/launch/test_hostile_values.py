"""Whatever words values, names and paths are: a job script starts what was planned, letter by letter, and nothing else.

The scripts run for real, with launchers that write down what they were given.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hidl_cli.launch.launchers import launcher
from hidl_cli.launch.launchers.contract import Launch, Request
from hidl_cli.launch.placement import Placement
from hidl_cli.mpi import Family, Library
from hidl_cli.plan.job_script import scheduler_values
from hidl_cli.templates import render_script

pytestmark = pytest.mark.real

RECORDER = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" > "$RECORD.argv"
env -0 > "$RECORD.environment"
"""
SCONTROL = "#!/bin/sh\nprintf 'n1\\nn2\\n'\n"
LIBRARIES: dict[str, Family] = {
    "mpiexec": "mpich",
    "mpirun": "openmpi",
    "mpirun_rsh": "mvapich2-gdr",
    "srun": "mvapich2",
    "ibrun": "intel-mpi",
    "jsrun": "spectrum-mpi",
}
NASTY = [
    "a b",
    "x;y",
    "$HOME",
    "`id`",
    "$(touch planted)",
    "'",
    '"',
    "\n#SBATCH --x",
    "-x",
    "ä",
    "*",
    "\\",
    "{{ x }}",
    "",
]
TEXT = st.sampled_from(NASTY) | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A directory of recording launchers and a scontrol."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name, text in {**dict.fromkeys([*LIBRARIES, "mpicc"], RECORDER), "scontrol": SCONTROL}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


def launch_of(name: str, program: list[str], environment: dict[str, str]) -> Launch:
    library = Library("m", LIBRARIES[name])
    placement = Placement(2, 2, 4, 1, bind=False)
    return launcher(name).launch(
        Request(placement, tuple(program), library, environment, forward=("PATH",), hostfile="steps/1/hosts")
    )


def job(name: str, launch: Launch, environment: dict[str, str], text: str, *, kept: bool) -> str:
    step = {
        "title": text,
        "placement": Placement(2, 2, 4, 1, bind=False),
        "launch": launch,
        "preflight": None,
        "copies": 0,
        "parser": "omb" if kept else None,
        "patterns": (),
        "timed": kept,
        "unbound": None,
    }
    values = {
        "run": text,
        "title": text,
        **scheduler_values("slurm"),
        "open_mpi": name == "mpirun",
        "header": [],
        "modules": [],
        "activate": "/dev/null",
        "own_programs": text,
        "mpi": replace(Library(text, LIBRARIES[name]), prefix=None),
        "environment": environment,
        "origins": dict.fromkeys(environment, text),
        "preloaded_by": [],
        "until_settled": False,
        "container": False,
        "reader": (),
        "launches": True,
        "keeps_output": kept,
        "copies_output": kept,
        "timed": kept,
        "unbound": None,
        "meets": kept,
        "local_limit": 0,
        "mpi_has_programs": True,
        "cores_per_rank": None,
        "node_memory": None,
        "steps": [step],
    }
    return render_script("job.sh.j2", values)


@pytest.mark.parametrize("name", LIBRARIES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.tuples(st.lists(TEXT, max_size=3), st.lists(TEXT, min_size=1, max_size=2), TEXT), kept=st.booleans())
def test_the_script_starts_what_was_planned(
    programs: Path, tmp_path: Path, name: str, words: tuple[list[str], list[str], str], kept: bool
) -> None:
    arguments, values, text = words
    environment = {f"NASTY_{number}": value for number, value in enumerate(values)}
    launch = launch_of(name, ["prog", *arguments], environment)
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)  # of the last example
    run.mkdir()
    (run / "plan.json").touch()
    (run / "job.sh").write_text(job(name, launch, environment, text, kept=kept), encoding="utf-8")
    record = tmp_path / "record"
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"

    ended = subprocess.run(
        ["bash", run / "job.sh"],
        env={"PATH": path, "RECORD": str(record), "SLURM_JOB_NODELIST": "n[1-2]", "LANG": "C.UTF-8"},
        capture_output=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    argv = (tmp_path / "record.argv").read_bytes().decode().split("\0")[:-1]
    beginning, end = list(launch.argv), list(launch.rest)
    assert argv[: len(beginning)] == beginning
    assert argv[len(argv) - len(end) :] == end
    seen = (tmp_path / "record.environment").read_bytes().decode().split("\0")
    assert {f"{variable}={value}" for variable, value in environment.items()} <= set(seen)
    assert {file.name for file in run.iterdir()} == {"plan.json", "job.sh", "hosts", "steps", "status.json"}
    assert (run / "hosts").read_text() == "n1\nn2\n"
