"""The job script of a program in a container: what the launcher starts, for each kind of runtime."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
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


PROGRAM = ("./train", "a b", ":")


def dry_run(
    hidl: Hidl, runtime: str, *options: str, program: tuple[str, ...] = PROGRAM, **site: object
) -> subprocess.CompletedProcess[str]:
    """The dry run of a program in a container, on a site with this runtime and these changes."""
    file = hidl.config / "sites" / "grove.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**SITE, **site, "containers": {"runtime": runtime, "arguments": ["--own=x"]}}))
    image = "docker://org/image:1" if runtime == "apptainer" else "org/image:1"
    words = ("run", "--site", "grove", "--nodes", "2", "--container", image, "--mount", "/data:/in:ro", *options)
    return hidl(*words, "--dry-run", "--", *program)


def launches(hidl: Hidl, runtime: str, *options: str, program: tuple[str, ...] = PROGRAM) -> list[list[str]]:
    """The command lines that start the check and the program."""
    done = dry_run(hidl, runtime, *options, program=program)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if re.search(r"\bsrun --nodes=2 .*own_program", line)]


@pytest.mark.parametrize("runtime", ["apptainer", "podman", "podman-hpc", "shifter"])
def test_other_runtimes_are_started_by_each_rank(hidl: Hidl, runtime: str) -> None:
    check, program = launches(hidl, runtime, "--env-var", "OF_THE_USER=1")

    at = check.index("--container")
    assert check[at:] == [*program[program.index("--container") :][:2], "--check", *program[-4:]]
    assert program[-3:] == ["./train", "a b", "%3A"]
    document = json.loads(check[at + 1].replace("%3A", ":"))
    assert "OF_THE_USER" in document.pop("variables")
    assert document == {
        "runtime": runtime,
        "image": "docker://org/image:1" if runtime == "apptainer" else "org/image:1",
        "mounts": [["/data", "/in", True]],
        "arguments": ["--own=x"],
        "prefixes": [],
        "libraries": [],
        "gpus": None,
        "checks_mpi": True,
    }
    assert not any(word.startswith("--container-") for word in program)


def test_pyxis_starts_hidl_and_the_program_in_the_image(hidl: Hidl) -> None:
    check, program = launches(hidl, "pyxis", "--mpi", "site-mpich", "--env-var", "OF_THE_USER=1")

    for words in (check, program):
        (variables,) = (word for word in words if word.startswith("--container-env="))
        names = variables.removeprefix("--container-env=").split(",")
        assert {"OF_THE_USER", "MASTER_ADDR", "HIDL_WORLD_SIZE", "HIDL_RANKS_PER_NODE"} <= {*names}
        assert not {"PATH", "LD_LIBRARY_PATH"} & {*names}
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
    assert json.loads(check[check.index("--container") + 1])["libraries"] == ["/opt/mpich/lib64", "/opt/mpich/lib"]


def test_the_job_records_the_values_of_the_node_for_pyxis(hidl: Hidl, tmp_path: Path) -> None:
    script = dry_run(hidl, "pyxis").stdout
    (block,) = re.findall(r"^for name in LD_LIBRARY_PATH .*?^done$", script, re.MULTILINE | re.DOTALL)
    show = 'env | grep "^HIDL_ON_NODE_" | sort'
    done = subprocess.run(
        ["bash", "-euc", f"{block}\n{show}"],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/node lib", "TMPDIR": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["HIDL_ON_NODE_LD_LIBRARY_PATH=/node lib", "HIDL_ON_NODE_TMPDIR="]
    assert "HIDL_ON_NODE_" not in dry_run(hidl, "podman").stdout


def test_pyxis_gets_the_variables_of_nvidias_hook(hidl: Hidl) -> None:
    """enroot gives containers GPUs only with these variables."""
    node = {"cores": 8, "gpus": 4, "gpu_model": "NVIDIA A100"}
    gpus = {"node_types": {"cpu": node}}
    for runtime, there in (("pyxis", True), ("podman", False)):
        done = dry_run(hidl, runtime, "--device", "gpu", **gpus)
        assert done.returncode == 0, done.stderr
        assert ("NVIDIA_VISIBLE_DEVICES=all" in done.stdout) == there, done.stdout
        assert ("NVIDIA_DRIVER_CAPABILITIES=compute,utility" in done.stdout) == there
    assert "NVIDIA_VISIBLE_DEVICES" not in dry_run(hidl, "pyxis", "--device", "cpu", **gpus).stdout


def test_the_library_of_the_image_is_of_the_family_of_the_stack(hidl: Hidl) -> None:
    libraries = {
        "mpi": {"mv": {"family": "mvapich", "srun_mpi": "pmi2", "environment": {"OF_MV": "1"}, "prefix": "/opt/mv"}},
        "default_mpi": "mv",
        "policies": {"environment": {"OF_SITE": "1"}},
    }
    own = dry_run(hidl, "podman", "--stack", "openmpi", **libraries)
    assert own.returncode == 0, own.stderr
    assert "--mpi=pmix" in own.stdout
    assert "OF_MV" not in own.stdout
    assert "OF_SITE" in own.stdout
    mounted = dry_run(hidl, "podman", "--mpi", "mv", **libraries)
    assert ("--mpi=pmi2" in mounted.stdout, "OF_MV=1" in mounted.stdout) == (True, True), mounted.stderr


def test_an_unknown_library_is_not_tuned(hidl: Hidl) -> None:
    for options in (["--tune", "MV2_IBA_HCA=mlx5_0"], ["--matrix", "MV2_IBA_HCA=a,b"]):
        done = dry_run(hidl, "podman", *options)
        assert done.returncode in (2, 3), done.stdout
    assert "the MPI library of the image is unknown" in dry_run(hidl, "podman", "--tune", "MV2_IBA_HCA=mlx5_0").stderr


@pytest.mark.parametrize("place", ["/etc", "/usr"])
def test_a_run_that_starts_in_a_directory_of_the_system_is_refused(
    hidl: Hidl, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    done = dry_run(hidl, "podman", program=("true",))
    assert done.returncode == 2
    assert f"{place} cannot be mounted in the image: it would replace the image's own system" in done.stderr


def test_a_run_that_starts_in_a_directory_with_a_separator_is_refused(
    hidl: Hidl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a,b").mkdir()
    monkeypatch.chdir(tmp_path / "a,b")
    done = dry_run(hidl, "apptainer", program=("true",))
    assert (done.returncode, "separators" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["mpi-sanity", "--container", "x"], "--container requires a program"),
        (["--mount", "/x", "--", "true"], "--mount requires --container"),
        (["--container", "x", "--profile", "--", "true"], "--container and --profile"),
        (["--container", "x", "--env", "/x", "--", "true"], "--container and --env"),
        (["--container", "./absent.sif", "--", "true"], "not found"),
        (["--container", "docker://x", "--mount", "a:b", "--", "true"], "invalid --mount"),
        (
            ["--container", "docker://x", "--env-var", "CONDA_PREFIX=/x", "--", "true"],
            "--env-var CONDA_PREFIX does not reach",
        ),
        (["--container", "x", "--", "true"], "runtime apptainer of site grove cannot start x"),
    ],
)
def test_combinations_that_make_no_sense_are_refused(hidl: Hidl, words: list[str], reason: str) -> None:
    launches(hidl, "apptainer")
    done = hidl("run", "--site", "grove", "--dry-run", *words)

    assert done.returncode in (2, 4)
    assert reason in done.stderr
