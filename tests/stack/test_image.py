"""``hidl stack containerize``: its commands install the packages of the lockfile, as pip does in an image."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Wheels
from hidl_cli.stack import lock
from hidl_cli.stack.checks import load_stack
from hidl_cli.stack.install import plan_install
from hidl_cli.stack.order import Order
from hidl_cli.stack.plan import InstallPlan, StackSources
from hidl_cli.stack.transfer import define_image
from tests.conftest import Hidl

PLATFORM = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[platform.machine()]


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
    places = {place for command in commands for place in re.findall(r"(?:^|[\s='\"])(/[^\s'\"]+)", command)}
    assert places
    assert all(place.startswith("/opt/hidl/") for place in places), places
    (file,) = image.glob("*.txt")
    assert f"COPY {file.name} /opt/hidl/lock.txt" in dockerfile
    assert "NVIDIA_" not in dockerfile

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
    assert f"FROM --platform={PLATFORM} registry.example/python:3.11\n" in (tmp_path / "image/Dockerfile").read_text()
    (tmp_path / "image" / "wheels" / "hidl_workloads-0.0-py3-none-any.whl").touch()
    again, forced = hidl(*options), hidl(*options, "--force")
    assert (again.returncode, forced.returncode) == (2, 0)
    assert [file.name.split("-")[:2] for file in (tmp_path / "image" / "wheels").iterdir()] != [
        ["hidl_workloads", "0.0"]
    ]
    assert len([*(tmp_path / "image" / "wheels").iterdir()]) == 1
    assert "--force" in again.stderr
    assert hidl(*options, "--force", "--base", "x\nRUN evil").returncode == 2


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_wheels_of_other_packages_are_kept(options: tuple[str, ...], hidl: Hidl, tmp_path: Path) -> None:
    own = tmp_path / "wheels" / "mine-1.0-py3-none-any.whl"
    own.parent.mkdir()
    own.write_text("precious")
    done = hidl("stack", "containerize", "mpi", "--output", str(tmp_path), *options)

    assert done.returncode == 2
    assert f"{own} is not a package of hidl" in " ".join(done.stderr.split())
    assert [own.read_text(), *tmp_path.iterdir()] == ["precious", own.parent]


def test_a_link_to_a_directory_of_wheels_is_refused(hidl: Hidl, tmp_path: Path) -> None:
    shared, output = tmp_path / "shared", tmp_path / "a b"
    shared.mkdir()
    output.mkdir()
    (shared / "hidl_workloads-0.0-py3-none-any.whl").touch()
    (output / "wheels").symlink_to(shared)
    done = hidl("stack", "containerize", "mpi", "--output", str(output), "--force")

    assert (done.returncode, "wheels is a link" in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert [*shared.iterdir()] == [shared / "hidl_workloads-0.0-py3-none-any.whl"]
    assert [*output.iterdir()] == [output / "wheels"]


def test_no_wheel_is_deleted_if_the_directory_cannot_be_written(hidl: Hidl, tmp_path: Path) -> None:
    old = tmp_path / "a b" / "wheels" / "hidl_workloads-0.0-py3-none-any.whl"
    old.parent.mkdir(parents=True)
    old.touch()
    (tmp_path / "a b" / "Dockerfile").mkdir()
    options = ("stack", "containerize", "mpi", "--output", str(tmp_path / "a b"), "--force")

    done = hidl(*options)
    assert (done.returncode, "cannot be written" in done.stderr, old.exists()) == (1, True, True), done.stderr
    (tmp_path / "a b" / "Dockerfile").rmdir()
    done = hidl(*options)
    assert (done.returncode, old.exists()) == (0, False), done.stderr
    assert f"docker build -t mpi '{tmp_path}/a b'" in " ".join(done.stderr.split())


def test_stacks_of_more_than_wheels_are_refused_by_name(hidl: Hidl, tmp_path: Path) -> None:
    done = hidl("stack", "containerize", "horovod", "--output", str(tmp_path / "image"))

    assert done.returncode == 2
    assert "horovod, which hidl builds from source" in done.stderr
    assert not (tmp_path / "image").exists()


def test_torch_comes_from_the_index_of_its_build(hidl: Hidl, tmp_path: Path) -> None:
    document = hidl.json("stack", "containerize", "pytorch", "--output", str(tmp_path / "image"))

    assert {"Dockerfile", "pytorch.def"} < {*document["files"]}
    assert "whl/cpu -r /opt/hidl/lock.txt" in (tmp_path / "image" / "Dockerfile").read_text()


def test_the_image_is_for_the_nodes_of_the_site(hidl: Hidl, tmp_path: Path) -> None:
    """All nodes of vista are aarch64; the stack's lockfile for this machine does not count."""
    document = hidl.json("stack", "containerize", "pytorch", "--site", "vista", "--output", str(tmp_path / "image"))
    dockerfile = (tmp_path / "image" / "Dockerfile").read_text()

    assert document["platform"] == "linux-aarch64"
    assert "pytorch-cp311-linux-aarch64-cuda.txt" in document["files"]
    dockerfile, definition = ((tmp_path / "image" / name).read_text() for name in ("Dockerfile", "pytorch.def"))
    assert "\nENV NVIDIA_VISIBLE_DEVICES=all\nENV NVIDIA_DRIVER_CAPABILITIES=compute,utility\n" in dockerfile
    assert "    export NVIDIA_VISIBLE_DEVICES=all\n" in definition
    assert "FROM --platform=linux/arm64 python:3.11-slim\n" in dockerfile
    check = lines_of(dockerfile)[0]
    for machine, status in (("aarch64", 0), ("x86_64", 1)):
        words = ["bash", "-c", f"uname() {{ echo {machine}; }}; {check}"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, "this image is for aarch64" in done.stderr) == (status, bool(status))


def test_nodes_without_lockfiles_are_refused_by_name(hidl: Hidl, tmp_path: Path) -> None:
    done = hidl("stack", "containerize", "mpi", "--site", "lassen", "--output", str(tmp_path / "image"))
    assert (done.returncode, "nodes of site lassen are linux-ppc64le" in done.stderr) == (2, True), done.stderr


@pytest.fixture
def plan(tmp_path: Path) -> InstallPlan:
    """The plan of the stack mpi on this machine."""
    found = plan_install(Order(load_site("local"), load_stack("mpi"), tmp_path / "root", locked=True)).plan
    assert found is not None
    return found


def test_only_sources_that_the_image_can_reach_are_written(plan: InstallPlan, tmp_path: Path) -> None:
    wheels = Wheels(
        index_url="https://mirror.example/simple",
        extra_index_urls=["https://own.example/simple", "https://user:hunter22@private.example/simple"],
        find_links=[str(tmp_path), "https://pages.example/wheels"],
    )
    of_stack = replace(plan, extra=StackSources(find_links=("https://stack.example/wheels",)))
    definition = define_image(of_stack, wheels)
    for name in ("Dockerfile", "mpi.def"):
        text = definition.files[name]
        for option in (
            "--index-url=https://mirror.example/simple",
            "--extra-index-url=https://own.example/simple",
            "--find-links=https://stack.example/wheels",
            "--find-links=https://pages.example/wheels",
        ):
            assert option in text, option
        assert str(tmp_path) not in text
        assert "private.example" not in text
    first, second = definition.notes
    assert str(tmp_path) in first
    assert ("private.example" in second, "hunter22" in second) == (True, False)

    for place in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(UsageError, match="a directory that the image does not have"):
            define_image(replace(plan, extra=StackSources(find_links=(place,))), Wheels())


def test_libraries_of_the_base_stay_behind_those_of_the_stack(plan: InstallPlan) -> None:
    definition = define_image(plan, Wheels())
    for name in ("Dockerfile", "mpi.def"):
        (line,) = (line for line in definition.files[name].splitlines() if "LD_LIBRARY_PATH=" in line)
        assert line.endswith("LD_LIBRARY_PATH=/opt/hidl/mpi/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
