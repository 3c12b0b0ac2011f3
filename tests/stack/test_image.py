"""``hidl stack containerize``: its commands install the packages of the lockfile, as pip does in an image."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from hidl_cli.stack import lock
from tests.conftest import Hidl


def lines_of(dockerfile: str) -> list[str]:
    """The commands that the Dockerfile runs."""
    (block,) = re.findall(r"^RUN (.*?[^\\])$", dockerfile, re.MULTILINE | re.DOTALL)
    return block.replace("\\\n", " ").split(" && ")


def commands_of(definition: str) -> list[str]:
    """The commands in ``%post`` of the Apptainer definition."""
    return [line.strip() for line in definition.split("%post\n")[1].split("\n\n", maxsplit=1)[0].splitlines()]


@pytest.mark.real
def test_the_commands_of_both_files_install_the_lockfile(hidl: Hidl, tmp_path: Path) -> None:
    image = tmp_path / "image"
    done = hidl("stack", "containerize", "mpi", "--output", str(image))
    assert done.returncode == 0, done.stderr
    dockerfile = (image / "Dockerfile").read_text()
    commands = lines_of(dockerfile)
    assert [command.split() for command in commands] == [
        command.split() for command in commands_of((image / "mpi.def").read_text())
    ]
    (file,) = image.glob("*.txt")
    assert f"COPY {file.name} /opt/hidl/lock.txt" in dockerfile

    root = tmp_path / "root"
    root.mkdir()
    (root / "lock.txt").write_text(file.read_text())
    (root / "wheels").symlink_to(image / "wheels")
    for command in commands:
        subprocess.run(["bash", "-c", command.replace("/opt/hidl", str(root))], check=True, capture_output=True)
    python = root / "mpi" / "bin" / "python"
    listed = subprocess.run([python, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True).stdout
    found = {each["name"].lower(): each["version"] for each in json.loads(listed)}
    locked = {package.name: package.version for package in lock.read(file).packages}
    assert locked.items() <= found.items()
    assert {*found} - {*locked} <= {"pip", "setuptools", "wheel", "hidl-workloads", "hidl_workloads"}
    program = "from mpi4py import MPI; print(MPI.COMM_WORLD.size)"
    ranks = subprocess.run(
        [root / "mpi/bin/mpiexec", "-n", "2", python, "-c", program], check=True, capture_output=True, text=True
    )
    assert ranks.stdout.split() == ["2", "2"]


def test_files_are_not_overwritten_and_bases_are_checked(hidl: Hidl, tmp_path: Path) -> None:
    options = ("stack", "containerize", "mpi", "--output", str(tmp_path / "image"))

    assert hidl(*options, "--base", "registry.example/python:3.11").returncode == 0
    assert "FROM registry.example/python:3.11\n" in (tmp_path / "image" / "Dockerfile").read_text()
    again, forced = hidl(*options), hidl(*options, "--force")
    assert (again.returncode, forced.returncode) == (2, 0)
    assert "--force" in again.stderr
    assert hidl(*options, "--force", "--base", "x\nRUN evil").returncode == 2


def test_stacks_of_more_than_wheels_are_refused_by_name(hidl: Hidl, tmp_path: Path) -> None:
    done = hidl("stack", "containerize", "horovod", "--output", str(tmp_path / "image"))

    assert done.returncode == 2
    assert "horovod, which hidl builds from source" in done.stderr
    assert not (tmp_path / "image").exists()


def test_torch_comes_from_the_index_of_its_build(hidl: Hidl, tmp_path: Path) -> None:
    document = hidl.json("stack", "containerize", "pytorch", "--output", str(tmp_path / "image"))

    assert {"Dockerfile", "pytorch.def"} < {*document["files"]}
    assert "whl/cpu -r /opt/hidl/lock.txt" in (tmp_path / "image" / "Dockerfile").read_text()
