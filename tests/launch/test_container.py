"""Containers: mounts, the command of each runtime, and stand-ins that behave as the runtimes document.

Charliecloud starts real containers in tests/runs/test_container_on_a_cluster.py. Podman, Apptainer and Shifter are
stand-ins here: they read their options, keep the variables that the real ones keep, and start the program on this
machine. For pyxis, the options of srun are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.launch.container import Container, ContainerMount, container_for, parse_mount
from hidl_cli.mpi import Library
from hidl_cli.site.schema import Site
from hidl_workloads import container as on_ranks
from hidl_workloads.own_program import CONTAINER, encode

#: Behave as the real programs: options until the image, and the variables that reach the program.
STAND_INS = {
    "podman": """
import os, sys
words, passed, directory = sys.argv[1:], {}, "/"
assert words.pop(0) == "run"
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name == "--env":
        passed[value.partition("=")[0]] = value.partition("=")[2] or os.environ[value]
    elif name == "--workdir":
        directory = value
    elif name == "--volume":
        assert os.path.exists(value.split(":")[0]), value
    elif name == "--preserve-fds":
        for number in range(3, 3 + int(value)):
            os.fstat(number)
    else:
        assert name in ("--rm", "--network", "--pid", "--ipc", "--entrypoint", "--userns"), name
image, *command = words
os.chdir(directory)
passed.update(PATH=os.environ["PATH"], HOME="/root", IMAGE=image)
os.execvpe(command[0], command, passed)
""",
    "apptainer": """
import os, sys
words, directory = sys.argv[1:], None
assert words.pop(0) == "exec"
while words[0].startswith("--"):
    name = words.pop(0)
    if name == "--bind":
        assert os.path.exists(words.pop(0).split(":")[0])
    elif name == "--pwd":
        directory = words.pop(0)
    else:
        assert name in ("--nv", "--rocm"), name
image, *command = words
passed = dict(os.environ, LD_LIBRARY_PATH="/.singularity.d/libs", IMAGE=image)
for name in list(passed):
    if name.startswith("APPTAINERENV_"):
        passed[name.removeprefix("APPTAINERENV_")] = passed.pop(name)
os.chdir(directory)
os.execvpe(command[0], command, passed)
""",
    "shifter": """
import os, sys
words, passed = sys.argv[1:], dict(os.environ)
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name == "--image":
        passed["IMAGE"] = value
    elif name == "--workdir":
        os.chdir(value)
    elif name == "--env":
        passed[value.partition("=")[0]] = value.partition("=")[2]
    else:
        assert name in ("--volume", "--module"), name
os.execvpe(words[0], words, passed)
""",
}
SHOW = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"


def site(**containers: object) -> Site:
    values = {
        "scheduler": "slurm",
        "launchers": ["srun"],
        "node_types": {},
        "partitions": {},
        "default_partition": None,
    }
    return Site.model_validate({"name": "x", "title": "x", **values, "containers": containers})


@pytest.mark.parametrize(
    ("word", "mount"),
    [
        ("/data", ContainerMount("/data", "/data")),
        ("/data:/in", ContainerMount("/data", "/in")),
        ("/data:/in/:ro", ContainerMount("/data", "/in", True)),
        ("/data:ro", ContainerMount("/data", "/data", True)),
        ("/a b:/in:rw", ContainerMount("/a b", "/in")),
    ],
)
def test_mounts_are_parsed(word: str, mount: ContainerMount) -> None:
    assert parse_mount(word) == mount


@pytest.mark.parametrize("word", ["", ":", ":/in", "/a:in", "/a:/in:x", "/a:/in:ro:rw", "/a,b", "/a:/b;c", "/a:/../b"])
def test_invalid_mounts_are_errors(word: str) -> None:
    with pytest.raises(UsageError, match="invalid --mount"):
        parse_mount(word)


def test_the_runtime_is_that_of_the_site_or_the_first_one_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    options = {"library": None, "gpus": None, "launcher": "srun"}
    assert container_for(site(runtime="shifter"), "pytorch:2", (), **options).runtime == "shifter"
    with pytest.raises(MissingPrecondition, match="no container runtime"):
        container_for(site(), "pytorch:2", (), **options)
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    assert container_for(site(), "pytorch:2", (), **options).runtime == "podman"


def test_what_a_runtime_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="pyxis requires launcher srun"):
        container_for(site(runtime="pyxis"), "x", (), library=None, gpus=None, launcher="mpiexec")
    with pytest.raises(UsageError, match="charliecloud cannot mount read-only"):
        container_for(site(runtime="charliecloud"), "x", ["/a:ro"], library=None, gpus=None, launcher="srun")
    library = Library("mpich", "mpich")
    with pytest.raises(MissingPrecondition, match="prefix is unknown"):
        container_for(site(runtime="podman"), "x", (), library=library, gpus=None, launcher="srun")
    with pytest.raises(MissingPrecondition, match="not found"):
        container_for(site(runtime="podman"), "./absent.sif", (), library=None, gpus=None, launcher="srun")


def test_pyxis_becomes_options_of_srun() -> None:
    container = container_for(
        site(runtime="pyxis", arguments=["--no-container-mount-home"]),
        "nvcr.io#nvidia/pytorch:25.01",
        ["/data:/in:ro"],
        library=Library("mpich", "mpich", prefix="/opt/mpich"),
        gpus="nvidia",
        launcher="srun",
    )

    assert container.srun_options([ContainerMount("/runs", "/runs")]) == (
        "--container-image=nvcr.io#nvidia/pytorch:25.01",
        "--container-mounts=/data:/in:ro,/runs:/runs,/opt/mpich:/opt/mpich:ro",
        "--no-container-mount-home",
    )


@pytest.mark.parametrize("runtime", STAND_INS)
def test_each_runtime_gets_the_variables_of_the_rank_and_the_directory(runtime: str, tmp_path: Path) -> None:
    programs, mpi, place = tmp_path / "bin", tmp_path / "mpi", tmp_path / "a b"
    for directory in (programs, mpi, place):
        directory.mkdir()
    (programs / runtime).write_text(f"#!{sys.executable}\n{STAND_INS[runtime]}")
    (programs / runtime).chmod(0o755)
    container = Container(
        runtime,  # type: ignore[arg-type]
        "pytorch:2",
        (ContainerMount(str(place), "/in", True),),
        prefixes=(str(mpi),),
        libraries=(f"{mpi}/lib",),
        gpus=None,
    )
    reading, writing = os.pipe()
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LD_LIBRARY_PATH": "/opt/node/lib",
        "VIRTUAL_ENV": "/opt/node",
        "HIDL_WORLD_SIZE": "4",
        "HIDL_RANKS_PER_NODE": "2",
        "HIDL_FINDINGS": f"{tmp_path}/findings.json",
        "PMI_RANK": "3",
        "PMI_SIZE": "4",
        "PMI_FD": str(writing),
        "OF_THE_USER": "a $b 'c'",
    }
    words = encode([CONTAINER, container.document, str(place), sys.executable, "-c", SHOW])
    done = subprocess.run(
        [sys.executable, "-m", "hidl_workloads.own_program", *words],
        env=environment,
        capture_output=True,
        text=True,
        pass_fds=(writing,),
        check=False,
    )
    for number in (reading, writing):
        os.close(number)
    assert done.returncode == 0, done.stderr
    found, directory = json.loads(done.stdout)

    assert directory == str(place)
    assert {name: found[name] for name in ("RANK", "WORLD_SIZE", "OF_THE_USER", "IMAGE", "HIDL_FINDINGS")} == {
        "RANK": "3",
        "WORLD_SIZE": "4",
        "OF_THE_USER": "a $b 'c'",
        "IMAGE": "pytorch:2",
        "HIDL_FINDINGS": f"{tmp_path}/findings.json",
    }
    assert found["LD_LIBRARY_PATH"].split(":")[0] == f"{mpi}/lib"
    assert "/opt/node/lib" not in found["LD_LIBRARY_PATH"]
    assert "VIRTUAL_ENV" not in found
    assert found["PYTHONPATH"].endswith("world_check")
    assert found["PMI_FD"] == ("3" if runtime == "podman" else str(writing))


def test_a_runtime_that_a_node_lacks_is_named_with_what_to_do(tmp_path: Path) -> None:
    document = Container("shifter", "x").document
    with pytest.raises(on_ranks.NoRuntime, match=r"shifter not found on .*\n.*containers.runtime"):
        on_ranks.enter(document, ["true"], "/", {"PATH": str(tmp_path)})


def test_mount_points_that_an_image_of_charliecloud_lacks(tmp_path: Path) -> None:
    for name in ("home", "opt/own", "data"):
        (tmp_path / name).mkdir(parents=True)
    image, find = str(tmp_path), on_ranks._mount_point

    assert find(image, "/data", "/data") == "/data:/data"
    assert find(image, "/tmp/run", "/tmp/run") is None
    assert find(image, "/home/you/run", "/home/you/run") == "/home:/home"
    for source, target in (("/opt/mpi", "/opt/mpi"), ("/scratch/x", "/scratch/x"), ("/a", "/home/b")):
        with pytest.raises(on_ranks.NoRuntime, match=f"mkdir -p {tmp_path}{target}"):
            find(image, source, target)
    assert find("image.sqfs", "/scratch", "/scratch") == "/scratch:/scratch"
