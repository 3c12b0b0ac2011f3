"""Start the program of a rank inside a container image, with each runtime's own program.

The runtime is started on the node, by ``hidl_workloads.own_program``: as the launcher started that process, it has the
rank's variables and open files (the socket of a PMI, for one). Inside the image, the run's directory, this package and
the program's directory are where they are outside; PATH and libraries are the image's own. Of the node's variables, the
program gets those that describe the rank and its job, and those that the site or the user has named.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass

TYPE_CHECKING = False  # the typing module is not imported at run time: start-up time counts
if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence
    from typing import Any

    Mount = tuple[str, str, bool]

PACKAGE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OF_THE_NODE = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME", "PYTHONPATH",
    "MPI4PY_MPIABI", "HIDL_SITE_MPI", "HIDL_STACK", "TMPDIR", "OPAL_PREFIX",
)  # fmt: skip
"""Variables that describe programs and libraries of the node."""

VALUE_ON_THE_NODE = "HIDL_ON_NODE_"
"""Prefix of the variables with the node's values of ``OF_THE_NODE``, for tasks that start in the image."""

NEVER_PASSED = (*OF_THE_NODE, "PATH", "HOME", "PWD", "OLDPWD", "SLURM_JWT")
"""Variables that no program in an image gets from the node."""

#: Variables that describe the rank, its job, its devices and the MPI library's settings: by prefix, and by name.
_PASSED_PREFIXES = (
    "HIDL_", "SLURM_", "SLURMD_", "PMI", "OMPI_", "PRTE_", "MV2_", "MVP_", "MPICH_", "MPIR_", "MPI_LOCAL", "I_MPI_",
    "HYDRA_", "HYDI_", "UCX_", "UCC_", "FI_", "PSM2_", "PSM3_", "NCCL_", "RCCL_", "GLOO_", "FLUX_", "PALS_", "ALPS_",
    "SLINGSHOT_", "PBS_", "LSB_", "JSM_", "OMP_", "PET_", "ZE_", "CH_",
)  # fmt: skip
_PASSED = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
    "TF_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
    "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "USER", "LOGNAME", "PYTHONNOUSERSITE",
)  # fmt: skip
#: Ends of the names of variables with a path of the node, such as UCX_ROOT, unless a scheduler or hidl has set them.
_PATH_ENDS = ("_ROOT", "_HOME", "_DIR", "_PREFIX", "_PATH", "_BASE")
_WITH_PATHS = ("HIDL_", "SLURM_", "PBS_", "LSB_", "PALS_")
#: Directories in which the daemons of PMIx meet the ranks.
_MEETING_PLACES = ("PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR", "SLURM_PMIXP_TMPDIR")
_SOCKET = "PMI_FD"
_FIRST_FREE = 3

#: Characters that separate the parts of a mount, or the mounts in a list.
SEPARATORS = (":", ",", ";")
_SYSTEM = (
    "/", "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/proc", "/run", "/sbin",
    "/sys", "/usr", "/usr/bin", "/usr/include", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/local",
    "/usr/local/bin", "/usr/local/lib", "/usr/local/lib64", "/usr/sbin", "/usr/share", "/var", "/var/lib",
)  # fmt: skip

NO_USER_SITE = "PYTHONNOUSERSITE"

CHECKS_MPI = "HIDL_CHECKS_MPI"
"""Set for a program whose MPI world must be that of the launched ranks (``world_check``)."""

MOUNTED_MPI = "HIDL_MOUNTED_MPI"
"""The directories of the MPI library that is mounted, for the check of the world."""

_SHELL = (
    'command -v python3 > /dev/null || { echo "$1" >&2; exit 86; }; start=$2; shift 2; '
    'exec python3 "$start" hidl_workloads.container_world "$@"'
)
GIVEN = "HIDL_GIVEN_"
"""Prefix of copies of variables, which the image does not set, for runtimes in which its variables take precedence."""

#: The image's own values stay behind those that hidl adds, and its other variables do not replace those of the rank.
#: The arguments are the names of the latter, both values, and the command.
_PREPEND = (
    'for hidl_name in $1; do eval "export $hidl_name=\\"\\$HIDL_GIVEN_$hidl_name\\""; unset "HIDL_GIVEN_$hidl_name"; '
    "done; unset hidl_name; shift; "
    '[ -z "$1" ] || export PYTHONPATH="$1${PYTHONPATH:+:$PYTHONPATH}"; '
    '[ -z "$2" ] || export LD_LIBRARY_PATH="$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"; shift 2; exec "$@"'
)
#: Wait until all ranks of the node have joined the container of ch-run, which ends with the first rank's program.
_AWAIT = (
    'hidl_tries=0; while [ -e "$1" ] && [ "$hidl_tries" -lt 1000 ]; do hidl_tries=$((hidl_tries + 1)); '
    'sleep 0.03 2> /dev/null || :; done; unset hidl_tries; shift; exec "$@"'
)
_SHARED_MEMORY = "/dev/shm"
_JOINED = f"{_SHARED_MEMORY}/ch-run_shm-"
#: The memory of a start is abandoned after this time; all ranks usually join within seconds.
_ABANDONED_SECONDS = 3600.0
_NO_PYTHON = (
    "hidl: the image has no python3, with which hidl checks that the ranks are one MPI world\n"
    "next: skip the check with --no-mpi, or add python3 to the image"
)
_PROGRAMS = {
    "charliecloud": ("ch-run",),
    "podman": ("podman",),
    "podman-hpc": ("podman-hpc",),
    "apptainer": ("apptainer", "singularity"),
    "shifter": ("shifter",),
}
#: Runtimes whose images may set variables that replace the given ones. Podman's ``--env`` takes precedence.
_IMAGE_FIRST = ("charliecloud", "shifter", "apptainer")
#: Variables that a shell does not let anyone set.
_OF_SHELLS = ("BASHOPTS", "BASH_VERSINFO", "EUID", "PPID", "SHELLOPTS", "UID", "_")
#: Devices of fabrics and of shared memory between processes, as patterns.
_FABRICS = ("infiniband", "cxi*", "hfi1*", "xpmem", "knem")
_GPU_OPTIONS = {
    "apptainer": {"nvidia": ["--nv"], "amd": ["--rocm"]},
    "podman": {
        "nvidia": ["--device=nvidia.com/gpu=all"],
        "amd": ["--device=/dev/kfd", "--device=/dev/dri"],
        "intel": ["--device=/dev/dri"],
    },
    "podman-hpc": {
        "nvidia": ["--gpu"],
        "amd": ["--device=/dev/kfd", "--device=/dev/dri"],
        "intel": ["--device=/dev/dri"],
    },
    "shifter": {"nvidia": ["--module=gpu"]},
}


@dataclass(frozen=True)
class _Start:
    """A program in an image, with the directory, the mounts and the names of the variables that it needs."""

    program: str
    image: str
    arguments: list[str]
    command: list[str]
    mounts: list[Mount]
    directory: str
    environment: MutableMapping[str, str]
    variables: list[str]
    group: tuple[int, str] | None


class NoRuntime(Exception):
    """The container cannot be started on this node; the message says why, and what to do."""


def enter(
    document: str, command: Sequence[str], directory: str, environment: MutableMapping[str, str], *, check: bool = False
) -> list[str]:
    """Return the command that starts ``command`` in the image, and make the environment that of the runtime.

    Args:
        document: The container as JSON: the fields of ``hidl_cli.launch.container.Container``.
        command: The program and its arguments.
        directory: Working directory, in the image too.
        environment: This process's environment, which the runtime inherits.
        check: Whether to check the world of the program's MPI library in the image instead of starting the program.

    Raises ``NoRuntime`` if the runtime is not installed, or a directory cannot be mounted.
    """
    container = json.loads(document)
    runtime = str(container["runtime"])
    program = _find(runtime, environment)
    libraries = os.pathsep.join(container["libraries"])
    words = list(command)
    for name in (CHECKS_MPI, MOUNTED_MPI):
        environment.pop(name, None)
    if check:
        start = os.path.join(PACKAGE, "start.py")  # noqa: PTH118
        words = ["sh", "-c", _SHELL, "sh", _NO_PYTHON, start, *words]
        if libraries:
            environment[MOUNTED_MPI] = libraries
    elif container["checks_mpi"]:
        environment[CHECKS_MPI] = "1"
    if NO_USER_SITE not in container["variables"]:  # the packages of ~/.local are the node's
        environment[NO_USER_SITE] = "1"
    if runtime == "pyxis":  # the launcher has started this process in the image
        _keep_the_image(environment, libraries)
        return words
    mounts = _mounts(container, directory, environment)
    own, others = _python_path(environment)
    if "USER" not in environment:  # ch-run requires it
        import pwd

        environment["USER"] = pwd.getpwuid(os.getuid()).pw_name
    if runtime not in ("charliecloud", "shifter"):  # the program is another process
        environment.pop("HIDL_RANK_PROCESS", None)
    passed = sorted(name for name in environment if _is_passed(name, container["variables"]))
    given = _copy(environment, passed) if runtime in _IMAGE_FIRST else []
    passed += [GIVEN + name for name in given]
    if own or libraries or given:
        words = ["sh", "-c", _PREPEND, "sh", " ".join(given), own, libraries, *words]
    if runtime in ("charliecloud", "shifter"):  # the program inherits the variables of the runtime
        for name in [one for one in environment if one not in passed and one not in ("PATH", "HOME", "PWD")]:
            del environment[name]
    else:
        _leave_the_image(environment, others, container["libraries"])
    arguments = [*container["arguments"], *_GPU_OPTIONS.get(runtime, {}).get(container["gpus"] or "", [])]
    group = _group(environment, check=check) if check or container["checks_mpi"] else None
    make = {"charliecloud": _charliecloud, "apptainer": _apptainer, "shifter": _shifter}.get(runtime, _podman)
    return make(_Start(program, container["image"], arguments, words, mounts, directory, environment, passed, group))


def _find(runtime: str, environment: MutableMapping[str, str]) -> str:
    """Return the path of the runtime's program, which is looked for with the PATH of the node."""
    import shutil

    if runtime == "pyxis":
        return ""
    names = _PROGRAMS[runtime]
    found = next(filter(None, (shutil.which(name, path=environment.get("PATH")) for name in names)), None)
    if found is None:
        raise NoRuntime(
            f"{' or '.join(names)} not found on {os.uname().nodename}\n"
            "next: set the site's `containers.runtime`, or add its module to `policies.modules`"
        )
    return found


def misfit(place: str) -> str | None:
    """Return why hidl cannot mount a directory of the node at the same path in an image; None if it can."""
    place = os.path.normpath("/" + place.lstrip("/"))
    if place in _SYSTEM or (place.startswith("/usr/lib") and place.endswith("-linux-gnu")):
        return "it would replace the image's own system"
    if any(one in place for one in SEPARATORS):
        return f"its path contains one of the separators of mounts: {' '.join(SEPARATORS)}"
    return None


def _mounts(container: dict[str, Any], directory: str, environment: MutableMapping[str, str]) -> list[Mount]:
    """Return what is mounted: the user's mounts, and what hidl, the launcher and the program need."""
    run = os.path.dirname(environment.get("HIDL_FINDINGS", ""))  # noqa: PTH120
    meeting = {environment[name]: name for name in _MEETING_PLACES if environment.get(name)}
    needed = [(PACKAGE, True), (run, False), (directory, False), *((place, False) for place in meeting)]
    needed += [(place, True) for place in container["prefixes"]]
    for place in container["prefixes"]:
        if not os.path.isdir(place):  # noqa: PTH112
            raise NoRuntime(
                f"the MPI library in {place} cannot be mounted: no such directory on {os.uname().nodename}\n"
                "next: correct its `prefix` in the site file, or omit --mpi to use the library of the image"
            )
    mounts: list[Mount] = [(source, target, bool(read_only)) for source, target, read_only in container["mounts"]]
    for place, read_only in needed:
        is_there = any(
            _below(place, target) and source == target and (read_only or not ro) for source, target, ro in mounts
        )
        if place and not is_there and os.path.isdir(place):  # noqa: PTH112
            if reason := misfit(place):
                variable = meeting.get(place)
                raise NoRuntime(
                    f"{f'{variable}={place}' if variable else place} cannot be mounted in the image: {reason}\n"
                    f"next: {'set it to' if variable else 'start hidl in'} another directory, or mount it yourself "
                    "with --mount"
                )
            mounts.append((place, place, read_only))
    return mounts


def _below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def _is_passed(name: str, named: Sequence[str]) -> bool:
    """Return whether the program gets a variable of the node; ``named`` are those of the site and the user."""
    if name in NEVER_PASSED or name.startswith(VALUE_ON_THE_NODE):
        return False
    is_path = name.endswith(_PATH_ENDS) and not name.startswith(_WITH_PATHS)
    return name in named or name in _PASSED or (name.startswith(_PASSED_PREFIXES) and not is_path)


def _copy(environment: MutableMapping[str, str], passed: Sequence[str]) -> list[str]:
    """Copy the variables under names that no image sets, and return the names of those that a shell can set again."""
    given = [name for name in passed if name.isascii() and name.isidentifier() and name not in _OF_SHELLS]
    environment.update({GIVEN + name: environment[name] for name in given})
    return given


def _python_path(environment: MutableMapping[str, str]) -> tuple[str, str]:
    """Return hidl's own part of ``PYTHONPATH``, and the rest."""
    places = environment.get("PYTHONPATH", "").split(os.pathsep)
    own = [place for place in places if place and _below(place, PACKAGE)]
    return os.pathsep.join(own), os.pathsep.join(place for place in places if place not in own)


def _leave_the_image(environment: MutableMapping[str, str], python_path: str, libraries: Sequence[str]) -> None:
    """Remove what hidl has added for the program from the environment of a runtime that does not pass it on.

    The runtime keeps the PATH and the libraries of its node: a module may have provided the programs that it starts.
    """
    places = [one for one in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if one not in libraries]
    for name, value in (("PYTHONPATH", python_path), ("LD_LIBRARY_PATH", os.pathsep.join(places)), ("LD_PRELOAD", "")):
        environment.pop(name, None)
        if value:
            environment[name] = value


def _keep_the_image(environment: MutableMapping[str, str], libraries: str) -> None:
    """Remove the node's values from the environment of a process in the image, and keep those of the image."""
    own, others = _python_path(environment)
    for name in OF_THE_NODE:
        on_the_node = environment.pop(VALUE_ON_THE_NODE + name, None)
        if on_the_node is not None and on_the_node == (others if name == "PYTHONPATH" else environment.get(name)):
            environment.pop(name, None)
            others = "" if name == "PYTHONPATH" else others
    behind = environment.get("LD_LIBRARY_PATH")
    for name, places in (("PYTHONPATH", [own, others]), ("LD_LIBRARY_PATH", [libraries, behind])):
        if value := os.pathsep.join(filter(None, places)):
            environment[name] = value


def _group(environment: MutableMapping[str, str], *, check: bool) -> tuple[int, str] | None:
    """Return the number of ranks on this node and a name for them in this launch; None for a single rank.

    MPI libraries copy long messages from the memory of another rank, which the kernel permits in one user namespace.
    The name differs from that of earlier jobs of the run, whose killed ranks may have left theirs on the node.
    """
    ranks = environment.get("LOCAL_WORLD_SIZE", "")
    if not ranks.isdecimal() or int(ranks) < 2:
        return None
    step = os.path.basename(os.path.dirname(environment.get("HIDL_METRICS", "")))  # noqa: PTH119, PTH120
    names = ("HIDL_JOB_STARTED", "SLURM_STEP_ID", "NODE_RANK")
    words = [environment.get("HIDL_RUN_ID", ""), step, *(environment.get(name, "") for name in names), "01"[check]]
    return int(ranks), "-".join(["hidl", *filter(None, words)]).replace("/", "-")


def _remove_abandoned(directory: str) -> None:
    """Remove what killed starts of ch-run have left: the memory of a start is used for seconds, until all have joined.

    Files of other users are skipped; those of another start in progress are younger.
    """
    import glob
    import time

    for kind in ("ch-run_shm-hidl-*", "sem.ch-run_sem-hidl-*"):
        for place in glob.glob(os.path.join(directory, kind)):  # noqa: PTH118, PTH207
            try:
                status = os.stat(place)  # noqa: PTH116
                if status.st_uid == os.getuid() and time.time() - status.st_mtime > _ABANDONED_SECONDS:
                    os.unlink(place)  # noqa: PTH108
            except OSError:  # another rank has removed it
                pass


def _charliecloud(start: _Start) -> list[str]:
    """``ch-run``, whose containers share everything but the file system; the node's /tmp is mounted."""
    options = [f"--set-env=PATH={_PATH}"]  # ch-run itself needs the PATH of the node
    options += ["--set-env"] if os.path.isfile(os.path.join(start.image, "ch", "environment")) else []  # noqa: PTH113, PTH118
    done: list[str] = []
    command = start.command
    if start.group is not None and not any(word.startswith(("--join", "-j")) for word in start.arguments):
        ranks, tag = start.group
        _remove_abandoned(_SHARED_MEMORY)
        options += ["--join", f"--join-ct={ranks}", f"--join-tag={tag}"]
        command = ["sh", "-c", _AWAIT, "sh", _JOINED + tag, *command]
    for source, target, _ in start.mounts:
        place = _mount_point(start.image, source, target)
        if place is not None and f"--bind={place}" not in done:
            done.append(f"--bind={place}")
    return [
        start.program,
        *options,
        *done,
        f"--cd={start.directory}",
        *start.arguments,
        start.image,
        "--",
        *command,
    ]


def _mount_point(image: str, source: str, target: str) -> str | None:
    """Return what to mount, since ch-run cannot create a directory in an image; None for what is there already.

    A directory that the image lacks is mounted with the directory above it that the image has, if that is empty there:
    /home, for one.
    """
    if not os.path.isdir(image):  # noqa: PTH112 - an archive
        return f"{source}:{target}"
    if _below(target, "/tmp") and source == target:
        return None
    if os.path.exists(image + target):  # noqa: PTH110
        return f"{source}:{target}"
    above = os.path.dirname(target)  # noqa: PTH120
    while above != "/" and not os.path.isdir(image + above):  # noqa: PTH112
        above = os.path.dirname(above)  # noqa: PTH120
    if above != "/" and source == target and not os.listdir(image + above):  # noqa: PTH208
        return f"{above}:{above}"
    raise NoRuntime(
        f"the image has no directory {target} on which {source} could be mounted\n"
        f"next: create it: mkdir -p {image}{target}"
    )


def _podman(start: _Start) -> list[str]:
    """``podman run``, which gets the variables by name and the launcher's socket as the first file after stderr.

    The container gets the fabric's devices and the limits of the job (of locked memory, for one), and with Podman
    itself the user's supplementary groups, to which project directories and GPUs may belong.
    The control groups of systemd are outside the job's: with ``cgroupfs`` the container of a user stays in them, with
    their limits, and ends with the job.
    """
    is_podman = os.path.basename(start.program) == "podman"  # noqa: PTH119
    general = ["--cgroup-manager=cgroupfs"] if is_podman else []
    options = ["--rm", "--interactive", "--network=host", "--pid=host", "--ipc=host", "--entrypoint="]
    options += ["--ulimit=host", *(f"--device={place}" for place in _fabric_devices("/dev"))]
    options.append(f"--workdir={start.directory}")
    if os.getuid() != 0:
        options.append("--userns=keep-id")
        if is_podman and not any(word.startswith("--group-add") for word in start.arguments):
            options.append("--group-add=keep-groups")
    if start.environment.get(_SOCKET, "").isdigit():
        if int(start.environment[_SOCKET]) != _FIRST_FREE:
            os.dup2(int(start.environment[_SOCKET]), _FIRST_FREE)
            start.environment[_SOCKET] = str(_FIRST_FREE)
        os.set_inheritable(_FIRST_FREE, True)
        options.append("--preserve-fds=1")
    options += [f"--volume={_with_mode(mount)}" for mount in start.mounts]
    options += [f"--env={name}" for name in start.variables if name in start.environment]
    return [start.program, *general, "run", *options, *start.arguments, start.image, *start.command]


def _fabric_devices(directory: str) -> list[str]:
    import glob

    return sorted(place for name in _FABRICS for place in glob.glob(os.path.join(directory, name)))  # noqa: PTH118, PTH207


def _apptainer(start: _Start) -> list[str]:
    """``apptainer exec``. Without ``--cleanenv``, the node's values replace those of an image from a registry."""
    prefix = "APPTAINERENV" if os.path.basename(start.program) == "apptainer" else "SINGULARITYENV"  # noqa: PTH119
    for name in start.variables:
        if name in start.environment:
            start.environment[f"{prefix}_{name}"] = start.environment[name]
    options = ["--cleanenv", *(word for mount in start.mounts for word in ("--bind", _with_mode(mount)))]
    options += ["--pwd", start.directory]
    if start.group is not None and _supports(start.program, "--sharens"):
        options.append("--sharens")
    return [start.program, "exec", *options, *start.arguments, start.image, *start.command]


def _supports(program: str, option: str) -> bool:
    """Return whether a version of Apptainer has an option."""
    import subprocess

    done = subprocess.run([program, "exec", "--help"], capture_output=True, text=True, check=False, errors="replace")
    return option in done.stdout


def _shifter(start: _Start) -> list[str]:
    """``shifter``, in whose images the variables of the image take precedence."""
    options = [
        f"--image={start.image}",
        f"--workdir={start.directory}",
        *(f"--volume={_with_mode(mount)}" for mount in start.mounts),
    ]
    return [start.program, *options, *start.arguments, *start.command]


def _with_mode(mount: Mount) -> str:
    source, target, read_only = mount
    return f"{source}:{target}" + (":ro" if read_only else "")


def message(error: NoRuntime) -> str:
    """Return what to print if a container cannot be started."""
    return f"hidl: {error}\n"


if __name__ == "__main__":
    sys.exit("hidl_workloads.own_program starts containers")
