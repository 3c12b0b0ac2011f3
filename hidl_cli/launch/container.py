"""Containers: the image in which a program runs, its mounts, and the site's runtime."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.mpi import Library
from hidl_cli.site.schema import ContainerRuntime, Site

#: Programs of the runtimes, in the order in which they are looked for if the site names none.
PROGRAMS: dict[ContainerRuntime, tuple[str, ...]] = {
    "charliecloud": ("ch-run",),
    "apptainer": ("apptainer", "singularity"),
    "podman-hpc": ("podman-hpc",),
    "podman": ("podman",),
    "shifter": ("shifter",),
}
#: Characters that separate the parts of a mount, or of the list of mounts.
_SEPARATORS = (":", ",", ";")


@dataclass(frozen=True)
class ContainerMount:
    """A directory or file of the node that is visible in the image."""

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
    """

    runtime: ContainerRuntime
    image: str
    mounts: tuple[ContainerMount, ...] = ()
    arguments: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    gpus: str | None = None

    @property
    def document(self) -> str:
        """The description that ``hidl_workloads.own_program`` reads on each rank."""
        mounts = [(mount.source, mount.target, mount.read_only) for mount in self.mounts]
        return json.dumps({**asdict(self), "mounts": mounts}, separators=(",", ":"))

    def srun_options(self, needed: Sequence[ContainerMount]) -> tuple[str, ...]:
        """Return the options of srun that start its tasks in the image, if the runtime is pyxis."""
        if self.runtime != "pyxis":
            return ()
        mounts = [*self.mounts, *needed, *(ContainerMount(place, place, True) for place in self.prefixes)]
        words = [f"{one.source}:{one.target}{':ro' if one.read_only else ''}" for one in dict.fromkeys(mounts)]
        return (f"--container-image={self.image}", f"--container-mounts={','.join(words)}", *self.arguments)


def parse_mount(word: str) -> ContainerMount:
    """Parse ``SRC[:DST[:ro]]``; raises ``UsageError`` if it is invalid."""
    source, *others = word.split(":")
    mode = others.pop() if others and others[-1] in ("ro", "rw") else "rw"
    target = others.pop(0) if others else ""
    source = str(Path(source).expanduser().absolute()) if source else ""
    target = target or source
    if not source or others or not target.startswith("/") or any(one in source + target for one in _SEPARATORS):
        raise UsageError(f"invalid --mount {word!r}", hint="use SRC, SRC:DST or SRC:DST:ro, with an absolute DST")
    if ".." in Path(target).parts:
        raise UsageError(f"invalid --mount {word!r}: the target contains ..", hint="use an absolute path")
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
        MissingPrecondition: The site names no runtime, and none is installed here, or the image does not exist.
        UsageError: The runtime does not support a mount, or the launcher.
    """
    runtime = site.containers.runtime or next(
        (name for name, programs in PROGRAMS.items() if any(map(shutil.which, programs))), None
    )
    if runtime is None:
        raise MissingPrecondition(
            f"no container runtime: site {site.name} names none, and none is installed here",
            hint=f"set `containers.runtime` in the site file: {', '.join((*PROGRAMS, 'pyxis'))}",
        )
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
    return Container(
        runtime,
        _image(image),
        parsed,
        tuple(site.containers.arguments),
        prefixes=(prefix,) if prefix else (),
        libraries=(f"{prefix}/lib64", f"{prefix}/lib") if prefix else (),
        gpus=gpus,
    )


def _image(image: str) -> str:
    """Return the absolute path of an image that is a file or directory, and any other name as it is."""
    if image.startswith(("/", "./", "../", "~")) or Path(image).exists():
        path = Path(image).expanduser().absolute()
        if not path.exists():
            raise MissingPrecondition(f"image {path} not found", hint="check the path")
        return str(path)
    return image
