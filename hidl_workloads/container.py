"""Start the program of a rank inside a container image, with each runtime's own program.

The runtime is started on the node, by ``hidl_workloads.own_program``: as the launcher started that process, it has the
rank's variables and open files (the socket of a PMI, for one). Inside the image, the run's directory, this package and
the program's directory are where they are outside; PATH and libraries are the image's own.
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

#: Variables that describe programs and libraries of the node.
_OF_THE_NODE = (
    "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "PYTHONHOME", "PYTHONPATH",
    "MPI4PY_MPIABI", "HIDL_SITE_MPI", "HIDL_STACK", "TMPDIR", "OPAL_PREFIX",
)  # fmt: skip
#: Directories in which the daemons of PMIx meet the ranks.
_MEETING_PLACES = ("PMIX_SERVER_TMPDIR", "PMIX_SYSTEM_TMPDIR", "SLURM_PMIXP_TMPDIR")
_SOCKET = "PMI_FD"
_FIRST_FREE = 3
_SHELL = (
    'command -v python3 > /dev/null || { echo "$1" >&2; exit 86; }; exec python3 "$2" hidl_workloads.container_world'
)
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
_GPU_OPTIONS = {
    "apptainer": {"nvidia": ["--nv"], "amd": ["--rocm"]},
    "podman": {"nvidia": ["--device=nvidia.com/gpu=all"], "amd": ["--device=/dev/kfd", "--device=/dev/dri"]},
    "podman-hpc": {"nvidia": ["--gpu"]},
    "shifter": {"nvidia": ["--module=gpu"]},
}


@dataclass(frozen=True)
class _Start:
    """A program in an image, and the directory and the mounts that it needs."""

    program: str
    image: str
    arguments: list[str]
    command: list[str]
    mounts: list[Mount]
    directory: str
    environment: MutableMapping[str, str]


class NoRuntime(Exception):
    """The container cannot be started on this node; the message says why, and what to do."""


def enter(document: str, command: Sequence[str], directory: str, environment: MutableMapping[str, str]) -> list[str]:
    """Return the command that starts ``command`` in the image, and make the environment that of the image.

    Args:
        document: The container as JSON: ``runtime``, ``image``, ``mounts``, ``arguments``, ``libraries``, ``gpus``.
        command: The program and its arguments; empty for the check of the world.
        directory: Working directory, in the image too.
        environment: This process's environment, which the runtime inherits.

    Raises ``NoRuntime`` if the runtime is not installed, or a directory cannot be mounted.
    """
    container = json.loads(document)
    runtime = str(container["runtime"])
    program = _find(runtime, environment)
    start = os.path.join(PACKAGE, "start.py")  # noqa: PTH118
    words = list(command) or ["sh", "-c", _SHELL, "sh", _NO_PYTHON, start]
    mounts = _mounts(container, directory, environment)
    _leave_the_node(environment, container["libraries"])
    arguments = [*container["arguments"], *_GPU_OPTIONS.get(runtime, {}).get(container["gpus"] or "", [])]
    if runtime == "pyxis":  # the launcher has started this process in the image
        return words
    environment["PATH"] = _PATH
    make = {"charliecloud": _charliecloud, "apptainer": _apptainer, "shifter": _shifter}.get(runtime, _podman)
    return make(_Start(program, container["image"], arguments, words, mounts, directory, environment))


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


def _mounts(container: dict[str, Any], directory: str, environment: MutableMapping[str, str]) -> list[Mount]:
    """Return what is mounted: the user's mounts, and what hidl, the launcher and the program need."""
    run = os.path.dirname(environment.get("HIDL_FINDINGS", ""))  # noqa: PTH120
    meeting = [environment[name] for name in _MEETING_PLACES if environment.get(name)]
    needed = [(PACKAGE, True), (run, False), (directory, False), *((place, False) for place in meeting)]
    needed += [(place, True) for place in container["prefixes"]]
    mounts: list[Mount] = [(source, target, bool(read_only)) for source, target, read_only in container["mounts"]]
    for place, read_only in needed:
        is_there = any(
            _below(place, target) and source == target and (read_only or not ro) for source, target, ro in mounts
        )
        if place and not is_there and os.path.isdir(place):  # noqa: PTH112
            mounts.append((place, place, read_only))
    return mounts


def _below(place: str, directory: str) -> bool:
    return place == directory or place.startswith(directory.rstrip("/") + "/")


def _leave_the_node(environment: MutableMapping[str, str], libraries: Sequence[str]) -> None:
    """Remove the variables that describe the node's programs; MPI's directories are those that are mounted."""
    own = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if _below(place, PACKAGE)]
    for name in _OF_THE_NODE:
        environment.pop(name, None)
    if own:
        environment["PYTHONPATH"] = os.pathsep.join(own)
    if libraries:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(libraries)
    if "USER" not in environment:  # ch-run requires it
        import pwd

        environment["USER"] = pwd.getpwuid(os.getuid()).pw_name


def _charliecloud(start: _Start) -> list[str]:
    """``ch-run``, whose containers share everything but the file system; the node's /tmp is mounted."""
    options = ["--set-env"] if os.path.isfile(os.path.join(start.image, "ch", "environment")) else []  # noqa: PTH113, PTH118
    if options and "LD_LIBRARY_PATH" in start.environment:
        options.append(f"--set-env=LD_LIBRARY_PATH={start.environment['LD_LIBRARY_PATH']}")
    done: list[str] = []
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
        *start.command,
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
    """``podman run``, which gets the variables by name and the launcher's socket as the first file after stderr."""
    start.environment.pop("HIDL_RANK_PROCESS", None)  # the program is another process
    options = ["--rm", "--network=host", "--pid=host", "--ipc=host", "--entrypoint=", f"--workdir={start.directory}"]
    if os.getuid() != 0:
        options.append("--userns=keep-id")
    if start.environment.get(_SOCKET, "").isdigit():
        if int(start.environment[_SOCKET]) != _FIRST_FREE:
            os.dup2(int(start.environment[_SOCKET]), _FIRST_FREE)
            start.environment[_SOCKET] = str(_FIRST_FREE)
        os.set_inheritable(_FIRST_FREE, True)
        options.append("--preserve-fds=1")
    options += [f"--volume={_with_mode(mount)}" for mount in start.mounts]
    options += [f"--env={name}" for name in sorted(start.environment) if name not in ("PATH", "HOME", "PWD", "OLDPWD")]
    return [start.program, "run", *options, *start.arguments, start.image, *start.command]


def _apptainer(start: _Start) -> list[str]:
    """``apptainer exec``, which passes all variables on but those that it sets itself."""
    libraries = start.environment.pop("LD_LIBRARY_PATH", None)
    if libraries:
        for prefix in ("APPTAINERENV", "SINGULARITYENV"):
            start.environment[f"{prefix}_LD_LIBRARY_PATH"] = f"{libraries}:/.singularity.d/libs"
    binds = [word for mount in start.mounts for word in ("--bind", _with_mode(mount))]
    return [start.program, "exec", *binds, "--pwd", start.directory, *start.arguments, start.image, *start.command]


def _shifter(start: _Start) -> list[str]:
    """``shifter``, in whose images the variables of the image take precedence."""
    options = [
        f"--image={start.image}",
        f"--workdir={start.directory}",
        *(f"--volume={_with_mode(mount)}" for mount in start.mounts),
    ]
    if "LD_LIBRARY_PATH" in start.environment:
        options.append(f"--env=LD_LIBRARY_PATH={start.environment['LD_LIBRARY_PATH']}")
    return [start.program, *options, *start.arguments, *start.command]


def _with_mode(mount: Mount) -> str:
    source, target, read_only = mount
    return f"{source}:{target}" + (":ro" if read_only else "")


def message(error: NoRuntime) -> str:
    """Return what to print if a container cannot be started."""
    return f"hidl: {error}\n"


if __name__ == "__main__":
    sys.exit("hidl_workloads.own_program starts containers")
