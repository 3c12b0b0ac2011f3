"""The job script of a program in a container: what the launcher starts, for each kind of runtime."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import Hidl

SITE = {
    "name": "grove",
    "title": "Grove",
    "scheduler": "slurm",
    "launchers": ["srun", "mpiexec"],
    "node_types": {"cpu": {"cores": 8, "gpus": 0}},
    "partitions": {"cpu": {"node_type": "cpu"}},
    "default_partition": "cpu",
    "mpi": {"site-mpich": {"family": "mpich", "prefix": "/opt/mpich"}},
}


def launches(
    hidl: Hidl, runtime: str, *options: str, program: tuple[str, ...] = ("./train", "a b", ":")
) -> list[list[str]]:
    """The command lines that start the check and the program, on a site with this runtime."""
    file = hidl.config / "sites" / "grove.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**SITE, "containers": {"runtime": runtime, "arguments": ["--own=x"]}}))
    words = (
        "run",
        "--site",
        "grove",
        "--nodes",
        "2",
        "--container",
        "org/image:1",
        "--mount",
        "/data:/in:ro",
        *options,
    )
    done = hidl(*words, "--dry-run", "--", *program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if re.search(r"\bsrun --nodes=2 .*own_program", line)]


@pytest.mark.parametrize("runtime", ["apptainer", "podman", "podman-hpc", "shifter"])
def test_other_runtimes_are_started_by_each_rank(hidl: Hidl, runtime: str) -> None:
    check, program = launches(hidl, runtime)

    assert check[-3:-1] == program[-6:-4] == ["--container", check[-2]]
    assert program[-3:] == ["./train", "a b", "%3A"]
    document = json.loads(check[-2].replace("%3A", ":"))
    assert document == {
        "runtime": runtime,
        "image": "org/image:1",
        "mounts": [["/data", "/in", True]],
        "arguments": ["--own=x"],
        "prefixes": [],
        "libraries": [],
        "gpus": None,
    }
    assert not any(word.startswith("--container-") for word in program)


def test_pyxis_starts_hidl_and_the_program_in_the_image(hidl: Hidl) -> None:
    check, program = launches(hidl, "pyxis", "--mpi", "site-mpich")

    for words in (check, program):
        (mounts,) = (word for word in words if word.startswith("--container-mounts="))
        places = mounts.removeprefix("--container-mounts=").split(",")
        assert places[0] == "/data:/in:ro"
        assert "/opt/mpich:/opt/mpich:ro" in places
        assert f"{Path.cwd()}:{Path.cwd()}" in places
        assert any(place.endswith("/hidl/runs") for place in places)
        assert "--container-image=org/image:1" in words
        assert "--own=x" in words
        start = words.index("python3")
        assert words[start + 1].endswith("/hidl_workloads/start.py")
        assert words[start + 2] == "hidl_workloads.own_program"
    assert json.loads(check[-2])["libraries"] == ["/opt/mpich/lib64", "/opt/mpich/lib"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["mpi-sanity", "--container", "x"], "--container requires a program"),
        (["--mount", "/x", "--", "true"], "--mount requires --container"),
        (["--container", "x", "--profile", "--", "true"], "--container and --profile"),
        (["--container", "x", "--env", "/x", "--", "true"], "--container and --env"),
        (["--container", "./absent.sif", "--", "true"], "not found"),
        (["--container", "x", "--mount", "a:b", "--", "true"], "invalid --mount"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(hidl: Hidl, words: list[str], reason: str) -> None:
    launches(hidl, "apptainer")
    done = hidl("run", "--site", "grove", "--dry-run", *words)

    assert done.returncode in (2, 4)
    assert reason in done.stderr
