"""Containers: the image in which a program runs, its mounts, and the site's runtime."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.mpi import Library
from hidl_cli.site.schema import ContainerRuntime, Site
from hidl_workloads.container import SEPARATORS, misfit

#: Programs of the runtimes, in the order in which they are looked for if the site names none.
PROGRAMS: dict[ContainerRuntime, tuple[str, ...]] = {
    "charliecloud": ("ch-run",),
    "apptainer": ("apptainer", "singularity"),
    "podman-hpc": ("podman-hpc",),
    "podman": ("podman",),
    "shifter": ("shifter",),
}
ImageForm = Literal["docker", "uri", "sif", "archive", "directory", "name"]
#: The runtimes that start each form of image.
_STARTED_BY: dict[ImageForm, tuple[ContainerRuntime, ...]] = {
    "docker": ("apptainer", "podman-hpc", "podman"),
    "uri": ("apptainer",),
    "sif": ("apptainer",),
    "archive": ("charliecloud", "apptainer", "pyxis"),
    "directory": ("charliecloud", "apptainer"),
    "name": ("charliecloud", "podman-hpc", "podman", "shifter", "pyxis"),
}
_FORMS: dict[ImageForm, str] = {
    "docker": "an image of a registry as a URI",
    "uri": "a URI",
    "sif": "a SIF file",
    "archive": "a file",
    "directory": "a directory",
    "name": "the name of an image",
}
_ARCHIVES = (".sqfs", ".sqsh", ".squashfs", ".img")
#: Runtimes for which a name in the working directory is a path; for others, paths begin with ``/`` or ``./``.
_PREFER_PATHS = ("charliecloud", "apptainer")


@dataclass(frozen=True)
class ContainerMount:
    """A directory or file on the node that is mounted in the image."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Container:
    """An image and how it is started.

    Attributes:
        runtime: The runtime that starts it.
        image: Path or name of the image.
        mounts: Mounts of the user.
        arguments: Additional arguments for the runtime.
        prefixes: Directories of the MPI library that is mounted; empty for the image's own.
        libraries: Directories of that library for ``LD_LIBRARY_PATH``.
        gpus: Vendor of the GPUs that the program uses.
        variables: Names of the variables of the site and of the user that the program gets.
        checks_mpi: Whether the program's MPI world must be that of the launched ranks.
    """

    runtime: ContainerRuntime
    image: str
    mounts: tuple[ContainerMount, ...] = ()
    arguments: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    gpus: str | None = None
    variables: tuple[str, ...] = ()
    checks_mpi: bool = False

    @property
    def document(self) -> str:
        """The description that ``hidl_workloads.own_program`` reads on each rank."""
        mounts = [(mount.source, mount.target, mount.read_only) for mount in self.mounts]
        return json.dumps({**asdict(self), "mounts": mounts}, separators=(",", ":"))

    def require_mountable(self, needed: Sequence[ContainerMount]) -> None:
        """Raise ``UsageError`` if hidl cannot mount a directory at the same path in the image.

        The user's own mounts may replace any directory.
        """
        own = [Path(mount.target) for mount in self.mounts if mount.source == mount.target]
        for mount in needed:
            if not any(map(Path(mount.source).is_relative_to, own)) and (reason := misfit(mount.source)):
                raise UsageError(
                    f"{mount.source} cannot be mounted in the image: {reason}",
                    hint="start hidl in another directory, in which the program and its files are",
                )

    def srun_options(self, needed: Sequence[ContainerMount], variables: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the options of srun that start its tasks in the image, if the runtime is pyxis.

        The variables take precedence over those of the image.
        """
        if self.runtime != "pyxis":
            return ()
        mounts = [*self.mounts, *needed, *(ContainerMount(place, place, True) for place in self.prefixes)]
        words = [f"{one.source}:{one.target}{':ro' if one.read_only else ''}" for one in dict.fromkeys(mounts)]
        options = [f"--container-image={self.image}", f"--container-mounts={','.join(words)}"]
        options += [f"--container-env={','.join(variables)}"] if variables else []
        return (*options, *self.arguments)


def parse_mount(word: str) -> ContainerMount:
    """Parse ``SRC[:DST[:ro]]``; raises ``UsageError`` if it is invalid."""
    source, *others = word.split(":")
    mode = others.pop() if others and others[-1] in ("ro", "rw") else "rw"
    target = others.pop(0) if others else ""
    source = str(_absolute(source)) if source else ""
    target = target or source
    if not source or others or not target.startswith("/") or any(one in source + target for one in SEPARATORS):
        raise UsageError(f"invalid --mount {word!r}", hint="use SRC, SRC:DST or SRC:DST:ro, with an absolute DST")
    if ".." in Path(target).parts:
        raise UsageError(f"invalid --mount {word!r}: the target contains ..", hint="use an absolute path")
    if not target.strip("/"):
        raise UsageError(
            f"invalid --mount {word!r}: it would replace the whole image", hint="name a directory in the image"
        )
    return ContainerMount(source, target.rstrip("/") or "/", mode == "ro")


def container_for(
    site: Site, image: str, mounts: Sequence[str], *, library: Library | None, gpus: str | None, launcher: str
) -> Container:
    """Return the container of a run.

    Args:
        site: The site.
        image: Path or name of the image.
        mounts: Values of ``--mount``.
        library: MPI library of the site or of the stack to mount; None for the image's own.
        gpus: Vendor of the GPUs that the program uses.
        launcher: Name of the launcher.

    Raises:
        MissingPrecondition: No runtime for the image is named or installed here, the image does not exist, or the
            library cannot be mounted.
        UsageError: The runtime does not support the image, a mount, or the launcher.
    """
    runtime, image = _runtime(site, image)
    if runtime == "pyxis" and launcher != "srun":
        raise UsageError(
            f"runtime pyxis requires launcher srun, not {launcher}", hint="use --launcher srun, or another runtime"
        )
    parsed = tuple(map(parse_mount, mounts))
    if runtime == "charliecloud" and (fixed := next((one for one in parsed if one.read_only), None)):
        raise UsageError(
            f"--mount {fixed.source}: runtime charliecloud cannot mount read-only", hint="omit :ro, or mount a copy"
        )
    prefix = library.prefix if library else None
    if library is not None and prefix is None:
        raise MissingPrecondition(
            f"MPI library {library.name} cannot be mounted: its prefix is unknown",
            hint="set its `prefix` in the site file, or omit --mpi to use the library of the image",
        )
    if library is not None and prefix is not None and (reason := misfit(prefix)):
        raise MissingPrecondition(
            f"MPI library {library.name} in {prefix} cannot be mounted: {reason}",
            hint="mount one with a prefix of its own (--mpi stack), or omit --mpi to use the library of the image",
        )
    return Container(
        runtime,
        image,
        parsed,
        tuple(site.containers.arguments),
        prefixes=(prefix,) if prefix else (),
        libraries=(f"{prefix}/lib64", f"{prefix}/lib") if prefix else (),
        gpus=gpus,
    )


def _runtime(site: Site, image: str) -> tuple[ContainerRuntime, str]:
    """Return the runtime that starts an image, and the absolute path or the name of the image."""
    if named := site.containers.runtime:
        place = _path_of(image, named)
        form = _form_of(image, place)
        if named not in _STARTED_BY[form]:
            supported = [_FORMS[key] for key, runtimes in _STARTED_BY.items() if named in runtimes]
            raise UsageError(
                f"runtime {named} of site {site.name} cannot start {image}, which is {_FORMS[form]}",
                hint=f"convert it: {named} starts {' or '.join(supported)}",
            )
        return named, str(place or image)
    installed = [name for name, programs in PROGRAMS.items() if any(map(shutil.which, programs))]
    if not installed:
        raise MissingPrecondition(
            f"no container runtime: site {site.name} names none, and none is installed here",
            hint=f"set `containers.runtime` in the site file: {', '.join((*PROGRAMS, 'pyxis'))}",
        )
    for name in installed:
        place = _path_of(image, name)
        if name in _STARTED_BY[_form_of(image, place)]:
            return name, str(place or image)
    form = _form_of(image, _path_of(image, installed[0]))
    raise MissingPrecondition(
        f"no installed container runtime ({', '.join(installed)}) can start {image}, which is {_FORMS[form]}",
        hint=f"convert it, or use one of: {', '.join(_STARTED_BY[form])}",
    )


def _path_of(image: str, runtime: ContainerRuntime) -> Path | None:
    """Return the absolute path of an image that is a file or directory; None for a name or a URI."""
    if "://" in image:
        return None
    is_path = image.startswith(("/", "./", "../", "~")) or image.endswith((".sif", *_ARCHIVES))
    path = _absolute(image)
    try:
        exists = path.exists()
    except OSError:  # the name is too long for a file
        exists = False
    if is_path and not exists:
        raise MissingPrecondition(f"image {path} not found", hint="check the path")
    return path if is_path or (exists and runtime in _PREFER_PATHS) else None


def _absolute(place: str) -> Path:
    """Return the absolute path without ``..``, which keeps the name of an unknown user after ``~``."""
    return Path(os.path.abspath(os.path.expanduser(place)))  # noqa: PTH100, PTH111


def _form_of(image: str, place: Path | None) -> ImageForm:
    if place is None:
        return "name" if "://" not in image else "docker" if image.startswith("docker://") else "uri"
    if place.is_dir():
        return "directory"
    return "sif" if place.suffix == ".sif" else "archive"
