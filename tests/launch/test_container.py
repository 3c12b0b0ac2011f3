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
import time
from pathlib import Path

import pytest

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.launch.container import Container, ContainerMount, container_for, parse_mount
from hidl_cli.mpi import Library
from hidl_cli.site.schema import Site
from hidl_workloads import container as on_ranks
from hidl_workloads.own_program import CONTAINER, STDIN, encode

#: The stand-ins of the runtimes share this: variables of the image, and a program that is another process.
_COMMON = """
import os, sys
OF_IMAGE = {"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/image/lib", "PYTHONPATH": "/image/python",
            "CUDA_HOME": "/image/cuda", "OF_THE_USER": "image", "UCX_TLS": "image", "RANK": "7"}
OF_RUNTIME = {f"RUNTIME_{name}": os.environ.get(name, "") for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")}
def mount(source, target, *mode):
    assert os.path.exists(source) and target.startswith("/") and mode in ((), ("ro",)), (source, target, mode)
def start(command, passed, directory):
    os.chdir(directory)
    child = os.fork()
    if child == 0:
        os.execvpe(command[0], command, {**passed, **OF_RUNTIME})
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
#: Behave as the real programs document: options until the image, and the variables that reach the program.
STAND_INS = {
    "podman": """
words, passed, directory, stdin = sys.argv[1:], dict(OF_IMAGE), "/", False
if os.path.basename(sys.argv[0]) == "podman":
    assert words.pop(0) == "--cgroup-manager=cgroupfs"
assert words.pop(0) == "run"
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name == "--env":
        passed[value.partition("=")[0]] = value.partition("=")[2] or os.environ[value]
    elif name == "--workdir":
        directory = value
    elif name == "--volume":
        mount(*value.split(":"))
    elif name == "--interactive":
        stdin = True
    elif name == "--preserve-fds":
        for number in range(3, 3 + int(value)):
            os.fstat(number)
    else:
        assert name in ("--rm", "--network", "--pid", "--ipc", "--entrypoint", "--userns", "--ulimit", "--device"), name
if not stdin:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
image, *command = words
start(command, {**passed, "HOME": "/root", "IMAGE": image}, directory)
""",
    "apptainer": """
words, directory, passed = sys.argv[1:], None, {**OF_IMAGE, **os.environ}
assert words.pop(0) == "exec"
while words[0].startswith("--"):
    name = words.pop(0)
    if name == "--bind":
        for each in words.pop(0).split(","):
            mount(*each.split(":"))
    elif name == "--pwd":
        directory = words.pop(0)
    elif name == "--cleanenv":
        passed = dict(OF_IMAGE)
    else:
        assert name in ("--nv", "--rocm"), name
image, *command = words
for name in os.environ:
    if name.startswith("APPTAINERENV_"):
        passed[name.removeprefix("APPTAINERENV_")] = os.environ[name]
passed.update(OF_THE_USER="image")  # as the %environment of an image may do
start(command, {**passed, "IMAGE": image}, directory)
""",
    "shifter": """
words, passed, directory = sys.argv[1:], {**os.environ, **OF_IMAGE}, "/"
while words[0].startswith("--"):
    name, _, value = words.pop(0).partition("=")
    if name == "--image":
        passed["IMAGE"] = value
    elif name == "--workdir":
        directory = value
    elif name == "--env":
        passed[value.partition("=")[0]] = value.partition("=")[2]
    elif name == "--volume":
        mount(*value.split(":"))
    else:
        assert name == "--module", name
os.chdir(directory)
os.execvpe(words[0], words, {**passed, **OF_RUNTIME})
""",
}
STAND_INS["podman-hpc"] = STAND_INS["podman"]
SHOW = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), os.getpid(), sys.stdin.read()]))"


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


def test_a_relative_directory_is_mounted_at_its_own_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    assert parse_mount("../data") == ContainerMount(f"{tmp_path}/data", f"{tmp_path}/data")


def test_a_directory_of_the_launcher_that_cannot_be_mounted_is_named_with_its_variable(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    environment = {"PATH": str(tmp_path), "PMIX_SYSTEM_TMPDIR": "/run"}
    with pytest.raises(on_ranks.NoRuntime, match=r"PMIX_SYSTEM_TMPDIR=/run cannot .*\nnext: set it to another"):
        on_ranks.enter(Container("podman", "x").document, ["true"], "/tmp", environment)


@pytest.mark.parametrize(
    "word", ["", ":", ":/in", "/a:in", "/a:/in:x", "/a:/in:ro:rw", "/a,b", "/a:/b;c", "/a:/../b", "/a:/", "/"]
)
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


#: Variables in the image: the rank's, the image's own, those that are named, and none of the node's.
EXPECTED = {
    "RANK": "0",
    "WORLD_SIZE": "4",
    "OF_THE_USER": "a $b 'c'",
    "MV2_HOME": "/named",
    "UCX_TLS": "tcp",
    "IMAGE": "pytorch:2",
    "HIDL_CHECKS_MPI": "1",
    "HIDL_FINDINGS": "",
    "CUDA_HOME": "/image/cuda",
    "VIRTUAL_ENV": None,
    "UCX_ROOT": None,
    "SLURM_JWT": None,
    "WANDB_API_KEY": None,
    "HIDL_GIVEN_RANK": None,
    "PYTHONNOUSERSITE": "1",
    "hidl_name": None,
}


@pytest.mark.parametrize("runtime", STAND_INS)
def test_each_runtime_gets_the_variables_of_the_rank_and_the_directory(runtime: str, tmp_path: Path) -> None:
    programs, mpi, place = tmp_path / "bin", tmp_path / "mpi", tmp_path / "a b"
    for directory in (programs, mpi, place):
        directory.mkdir()
    (place / "input").write_text("given")
    (programs / runtime).write_text(f"#!{sys.executable}\n{_COMMON}{STAND_INS[runtime]}")
    (programs / runtime).chmod(0o755)
    container = Container(
        runtime,  # type: ignore[arg-type]
        "pytorch:2",
        (ContainerMount(str(place), "/in", True),),
        prefixes=(str(mpi),),
        libraries=(f"{mpi}/lib",),
        gpus=None,
        variables=("OF_THE_USER", "MV2_HOME"),
        checks_mpi=True,
    )
    reading, writing = os.pipe()
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "LD_LIBRARY_PATH": f"{mpi}/lib:/opt/node/lib",
        "PYTHONPATH": "/opt/node/python",
        "VIRTUAL_ENV": "/opt/node",
        "CUDA_HOME": "/opt/node/cuda",
        "UCX_ROOT": "/opt/node/ucx",
        "SLURM_JWT": "secret",
        "WANDB_API_KEY": "secret",
        "UCX_TLS": "tcp",
        "MV2_HOME": "/named",
        "HIDL_WORLD_SIZE": "4",
        "HIDL_RANKS_PER_NODE": "2",
        "HIDL_FINDINGS": f"{tmp_path}/findings.json",
        "PMI_RANK": "0",
        "PMI_SIZE": "4",
        "PMI_FD": str(writing),
        "OF_THE_USER": "a $b 'c'",
    }
    program = [sys.executable, "-c", SHOW]
    words = encode([STDIN, str(place / "input"), CONTAINER, container.document, str(place), *program])
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
    found, directory, process, given = json.loads(done.stdout)

    assert (directory, given) == (str(place), "given")
    assert {name: found.get(name) for name in EXPECTED} == EXPECTED | {"HIDL_FINDINGS": f"{tmp_path}/findings.json"}
    assert found["LD_LIBRARY_PATH"] == f"{mpi}/lib:/image/lib"
    assert found["PYTHONPATH"].endswith("world_check:/image/python")
    assert found["PMI_FD"] == ("3" if runtime.startswith("podman") else str(writing))
    assert found.get("HIDL_RANK_PROCESS") in (None, str(process))
    assert found["RUNTIME_PATH"] == environment["PATH"]
    assert "world_check" not in found["RUNTIME_PYTHONPATH"]
    assert str(mpi) not in found["RUNTIME_LD_LIBRARY_PATH"]


def test_a_process_in_the_image_keeps_the_image_and_leaves_the_node() -> None:
    check = f"{Path(on_ranks.__file__).parent}/world_check"
    environment = {
        "LD_LIBRARY_PATH": "/image/cuda/lib",
        "OPAL_PREFIX": "/image/ompi",
        "PYTHONPATH": f"{check}:/image/python",
        "CONDA_PREFIX": "/node/conda",
        "TMPDIR": "/tmp",
        "HIDL_ON_NODE_LD_LIBRARY_PATH": "/node/lib",
        "HIDL_ON_NODE_PYTHONPATH": "/node/python",
        "HIDL_ON_NODE_CONDA_PREFIX": "/node/conda",
    }
    document = Container("pyxis", "x", libraries=("/opt/mpich/lib",)).document
    assert on_ranks.enter(document, ["./train"], "/", environment) == ["./train"]
    assert environment == {
        "LD_LIBRARY_PATH": "/opt/mpich/lib:/image/cuda/lib",
        "OPAL_PREFIX": "/image/ompi",
        "PYTHONPATH": f"{check}:/image/python",
        "PYTHONNOUSERSITE": "1",
        "TMPDIR": "/tmp",
    }

    environment = {
        "PYTHONPATH": f"{check}:/node/python",
        "HIDL_ON_NODE_PYTHONPATH": "/node/python",
        "PATH": "/image/bin",
    }
    on_ranks.enter(Container("pyxis", "x", checks_mpi=True).document, ["./train"], "/", environment)
    own = {"PYTHONNOUSERSITE": "1", "HIDL_CHECKS_MPI": "1"}
    assert environment == {"PYTHONPATH": check, "PATH": "/image/bin", **own}
    environment = {"PYTHONNOUSERSITE": ""}
    on_ranks.enter(Container("pyxis", "x", variables=("PYTHONNOUSERSITE",)).document, ["./train"], "/", environment)
    assert environment == {"PYTHONNOUSERSITE": ""}


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        *((place, "image's own system") for place in ("/", "/usr", "/usr/", "//usr", "/etc", "/opt", "/usr/local")),
        ("/usr/lib/x86_64-linux-gnu", "image's own system"),
        ("/t/a,b", "separators"),
        ("/t/c:d", "separators"),
        ("/t/e;f", "separators"),
    ],
)
def test_directories_that_hidl_cannot_mount_are_refused_by_name(place: str, reason: str) -> None:
    container = Container("apptainer", "x.sif")
    with pytest.raises(UsageError, match=reason):
        container.require_mountable([ContainerMount("/data", "/data"), ContainerMount(place, place)])
    own = Container("apptainer", "x.sif", mounts=(ContainerMount(place, place),))
    own.require_mountable([ContainerMount(place, place)])


@pytest.mark.parametrize("place", ["/home/you", "/opt/mpich", "/usr/local/mpich", "/tmp", "/root", "/etc/of-the-user"])
def test_other_directories_are_mounted(place: str) -> None:
    assert on_ranks.misfit(place) is None


def test_an_mpi_library_of_the_system_cannot_be_mounted() -> None:
    library = Library("mpich", "mpich", prefix="/usr")
    with pytest.raises(MissingPrecondition, match="mpich in /usr cannot be mounted"):
        container_for(site(runtime="podman"), "x", (), library=library, gpus=None, launcher="srun")


#: Images, in a directory with a folder ``pytorch`` and a file ``x.sif``, and what starts them; None if nothing does.
IMAGES = {
    ("docker://x/y", "ch-run apptainer"): ("apptainer", "docker://x/y"),
    ("docker://x/y", "ch-run podman"): ("podman", "docker://x/y"),
    ("library://x/y", "ch-run podman"): None,
    ("./x.sif", "ch-run apptainer"): ("apptainer", "HERE/x.sif"),
    ("x.sif", "ch-run singularity"): ("apptainer", "HERE/x.sif"),
    ("x.sif", "ch-run podman shifter"): None,
    ("pytorch", "podman"): ("podman", "pytorch"),
    ("pytorch", "shifter"): ("shifter", "pytorch"),
    ("pytorch", "ch-run podman"): ("charliecloud", "HERE/pytorch"),
    ("./pytorch", "podman apptainer"): ("apptainer", "HERE/pytorch"),
    ("./pytorch", "podman"): None,
    ("org/x:1", "apptainer podman-hpc"): ("podman-hpc", "org/x:1"),
    ("x" * 300, "podman"): ("podman", "x" * 300),
    ("~x-no-user/x", "ch-run"): None,
}


@pytest.mark.parametrize(("image", "programs"), IMAGES)
def test_the_runtime_is_one_that_starts_the_image(
    image: str, programs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in programs.split():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "x.sif").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.chdir(tmp_path)
    options = {"library": None, "gpus": None, "launcher": "srun"}
    expected = IMAGES[image, programs]
    if expected is None:
        with pytest.raises(MissingPrecondition, match=r"can start .*(pytorch|x)|image .* not found"):
            container_for(site(), image, (), **options)
        return
    found = container_for(site(), image, (), **options)
    assert (found.runtime, found.image) == (expected[0], expected[1].replace("HERE", str(tmp_path)))


@pytest.mark.parametrize(
    ("runtime", "image"), [("charliecloud", "docker://x/y"), ("apptainer", "x:1"), ("podman", "."), ("shifter", "/")]
)
def test_a_named_runtime_that_cannot_start_the_image_is_an_error(runtime: str, image: str) -> None:
    image = f"./{image}" if image == "." else image
    with pytest.raises(UsageError, match=f"runtime {runtime} of site x cannot start"):
        container_for(site(runtime=runtime), image, (), library=None, gpus=None, launcher="srun")


def test_a_runtime_that_a_node_lacks_is_named_with_what_to_do(tmp_path: Path) -> None:
    document = Container("shifter", "x").document
    with pytest.raises(on_ranks.NoRuntime, match=r"shifter not found on .*\n.*containers.runtime"):
        on_ranks.enter(document, ["true"], "/", {"PATH": str(tmp_path)})


@pytest.mark.parametrize("options", ["", "--sharens"])
def test_ranks_on_a_node_share_a_namespace_if_the_runtime_can(options: str, tmp_path: Path) -> None:
    for program in ("apptainer", "ch-run"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho 'Options: {options}'\n")
        (tmp_path / program).chmod(0o755)
    environment = {
        "PATH": str(tmp_path),
        "HIDL_RUN_ID": "of-a",
        "HIDL_JOB_STARTED": "7.25",
        "HIDL_METRICS": "/runs/of-a/steps/3/metrics.json",
    }

    def started(container: Container, *, check: bool = False, ranks: int = 4) -> list[str]:
        variables = {**environment, "LOCAL_WORLD_SIZE": str(ranks)}
        return on_ranks.enter(container.document, ["true"], "/tmp", variables, check=check)

    apptainer = Container("apptainer", "x.sif", checks_mpi=True)
    assert ("--sharens" in started(apptainer)) == (options != "")
    assert "--sharens" not in started(Container("apptainer", "x.sif"))
    assert "--sharens" not in started(apptainer, ranks=1)
    charliecloud = Container("charliecloud", "x.sqfs", checks_mpi=True)
    assert [word for word in started(charliecloud) if "join" in word] == [
        "--join", "--join-ct=4", "--join-tag=hidl-of-a-3-7.25-0",
    ]  # fmt: skip
    assert "--join-tag=hidl-of-a-3-7.25-1" in started(charliecloud, check=True)
    own = Container("charliecloud", "x.sqfs", checks_mpi=True, arguments=("--join-ct=2",))
    assert [word for word in started(own) if "join" in word] == ["--join-ct=2"]


def test_memory_of_killed_starts_is_removed_and_that_of_others_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ch-run").write_text("#!/bin/sh\n")
    (tmp_path / "ch-run").chmod(0o755)
    memory = tmp_path / "shm"
    memory.mkdir()
    old = time.time() - 7200
    for name in ("ch-run_shm-hidl-a-0", "sem.ch-run_sem-hidl-a-0", "ch-run_shm-of-the-user", "mpich_1"):
        (memory / name).touch()
        os.utime(memory / name, (old, old))
    (memory / "ch-run_shm-hidl-b-0").touch()
    monkeypatch.setattr(on_ranks, "_SHARED_MEMORY", str(memory))
    container = Container("charliecloud", "x.sqfs", checks_mpi=True)
    on_ranks.enter(container.document, ["true"], "/tmp", {"PATH": str(tmp_path), "LOCAL_WORLD_SIZE": "2"})
    left = ["ch-run_shm-hidl-b-0", "ch-run_shm-of-the-user", "mpich_1"]
    assert sorted(file.name for file in memory.iterdir()) == left


def test_podman_gets_the_devices_groups_and_limits_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("infiniband/uverbs0", "cxi0", "cxi1", "xpmem", "null"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert on_ranks._fabric_devices(str(tmp_path)) == [
        f"{tmp_path}/{name}" for name in ("cxi0", "cxi1", "infiniband", "xpmem")
    ]
    monkeypatch.setattr(on_ranks, "_fabric_devices", lambda directory: [f"{directory}/cxi0"])
    monkeypatch.setattr("os.getuid", lambda: 1000)
    for name in ("podman", "podman-hpc"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    def started(runtime: str, gpus: str | None, *arguments: str) -> set[str]:
        container = Container(runtime, "x", gpus=gpus, arguments=arguments)  # type: ignore[arg-type]
        return {*on_ranks.enter(container.document, ["true"], "/tmp", {"PATH": str(tmp_path), "USER": "x"})}

    for runtime in ("podman", "podman-hpc"):
        assert {"--device=/dev/cxi0", "--ulimit=host", "--device=/dev/dri"} <= started(runtime, "intel")
        assert {"--device=/dev/kfd", "--device=/dev/dri"} <= started(runtime, "amd")
        assert "--device=/dev/dri" not in started(runtime, None)
    assert "--group-add=keep-groups" in started("podman", None)
    assert "--group-add=keep-groups" not in started("podman", None, "--group-add=video")


def test_standard_input_is_read_in_the_runs_directory(tmp_path: Path) -> None:
    """Tasks of pyxis start in the image's own working directory."""
    (tmp_path / "stdin").write_text("given")
    words = encode([STDIN, "stdin", CONTAINER, Container("pyxis", "x").document, "/tmp", "cat"])
    environment = {"PATH": os.environ["PATH"], "HIDL_WORLD_SIZE": "1", "HIDL_FINDINGS": f"{tmp_path}/findings.json"}
    done = subprocess.run(
        [sys.executable, Path(on_ranks.__file__).with_name("start.py"), "hidl_workloads.own_program", *words],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "given"), done.stderr


def test_a_library_that_the_node_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "podman").write_text("#!/bin/sh\n")
    (tmp_path / "podman").chmod(0o755)
    document = Container("podman", "x", prefixes=("/opt/absent",), libraries=("/opt/absent/lib",)).document
    with pytest.raises(on_ranks.NoRuntime, match=r"library in /opt/absent cannot be mounted: no such directory on .*"):
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
