"""Planned builds: for each build, all of its inputs except the machine and its compilers; and the kinds of builds.

Source archives on this machine are provided by the user or by an earlier installation. They are searched for in the
directories listed in ``$HIDL_SOURCES``, in ``<root>/sources`` and in hidl's cache. If the recipe has a SHA-256, the
archive must match it. Otherwise, the SHA-256 of the user's archive is recorded in the manifest.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from uv import find_uv_bin

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, InvalidInput, MissingPrecondition
from hidl_cli.stack.order import InstallStep
from hidl_cli.stack.schema import Build, name_of

if TYPE_CHECKING:
    from hidl_cli.stack.lock import Lock
    from hidl_cli.stack.plan import InstallPlan


SOURCES_VARIABLE = "HIDL_SOURCES"

_VERSION_PATTERN = r"\d[0-9A-Za-z.+-]*"


def source_directories(root: Path) -> tuple[Path, ...]:
    """Return the directories of user-provided archives: those in ``$HIDL_SOURCES``, followed by ``<root>/sources``."""
    named = [Path(place).expanduser() for place in os.environ.get(SOURCES_VARIABLE, "").split(os.pathsep) if place]
    return (*named, root / "sources")


def find_source(file: str, root: Path) -> Path | None:
    """Return the first user-provided archive with that name, without checking it, or None if there is none."""
    return next((place / file for place in source_directories(root) if (place / file).is_file()), None)


def user_archive(recipe: Build, root: Path, given: Path | None) -> tuple[Path, Build]:
    """Return the user's archive, and the recipe with the archive's file name and version.

    ``given`` is the file from the command line. Without it, the newest suitable version is selected from the first
    directory that has any. Raises ``MissingPrecondition`` if none is found.
    """
    if given is not None and not given.is_file():
        raise MissingPrecondition(f"source {given} of {recipe.name} not found", hint="--source NAME=FILE")
    found = given or newest_source(recipe, root)
    if found is None:
        raise missing_source(recipe, root)
    if not recipe.source.any_version:
        return found, recipe
    version = _version_of(found, recipe)
    file = recipe.source.file.replace(recipe.version, version)
    return found, recipe.model_copy(
        update={"version": version, "source": recipe.source.model_copy(update={"file": file})}
    )


def newest_source(recipe: Build, root: Path) -> Path | None:
    """Return the user-provided archive with the newest suitable version, or None if there is none."""
    if not recipe.source.any_version:
        return find_source(recipe.source.file, root)
    for place in source_directories(root):
        files = [file for file in place.glob(recipe.source.file.replace(recipe.version, "*")) if file.is_file()]
        if files:
            return max(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.name)])
    return None


def _version_of(archive: Path, recipe: Build) -> str:
    """Read the version from the archive's name or from the name of its top-level directory.

    The default is the version in the recipe.
    """
    before, _, after = recipe.source.file.partition(recipe.version)
    by_name = re.fullmatch(f"{re.escape(before)}({_VERSION_PATTERN}){re.escape(after)}", archive.name)
    if by_name:
        return by_name[1]
    try:
        with tarfile.open(archive) as tar:
            first = tar.next()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise BuildFailed(f"{archive} is not an archive of {recipe.name}: {error}") from error
    by_directory = re.match(f"(?:\\./)?{re.escape(before)}({_VERSION_PATTERN})(?:/|$)", first.name if first else "")
    return by_directory[1] if by_directory else recipe.version


def missing_source(recipe: Build, root: Path) -> MissingPrecondition:
    """Return the error for a missing archive, including a hint about where to get the archive and where to put it."""
    source = recipe.source
    origin = f" from {source.homepage}" if source.homepage else ""
    return MissingPrecondition(
        f"source {source.file} of {recipe.name} {recipe.version} not found",
        hint=f"download it{origin} and pass --source {recipe.name}=FILE (or put it into {root / 'sources'} or a "
        f"directory of {SOURCES_VARIABLE})",
    )


#: Incremented when a change to hidl makes builds with the same inputs produce different output.
FORMAT = 1


@dataclass(frozen=True)
class RecipeFile:
    """A file next to the recipe, such as a patch, and the SHA-256 digest of its content."""

    file: Path
    digest: str


@dataclass(frozen=True)
class PlannedBuild:
    """One of a stack's builds.

    ``source_digest`` is the SHA-256 of the source archive, and ``against`` maps packages to locked versions. If the
    source cannot be downloaded, ``archive`` is the user's file, and ``recipe`` contains the file's name and version.
    """

    recipe: Build
    source_digest: str
    archive: Path | None
    patches: tuple[RecipeFile, ...]
    objects: tuple[RecipeFile, ...]
    against: Mapping[str, str]

    @property
    def name(self) -> str:
        """The build's name."""
        return self.recipe.name

    @property
    def version(self) -> str:
        """The source version."""
        return self.recipe.version

    @property
    def inputs(self) -> dict[str, Any]:
        """All of the build's inputs except the machine and its compilers."""
        return {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "kind": self.recipe.kind,
            "source": self.source_digest,
            "patches": [patch.digest for patch in self.patches],
            "environment": dict(self.recipe.environment),
            "requires": dict(self.recipe.requires),
            "against": dict(self.against),
            **({"objects": {each.file.name: each.digest for each in self.objects}} if self.objects else {}),
            **({"configure": list(self.recipe.configure)} if self.recipe.configure else {}),
            **({"link_programs": self.recipe.link_programs} if self.recipe.link_programs else {}),
        }

    @property
    def digest(self) -> str:
        """The SHA-256 of the inputs."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the build as plain data."""
        patches = [{"file": patch.file.name, "sha256": patch.digest} for patch in self.patches]
        source = {"file": self.recipe.source.file, "sha256": self.source_digest}
        return {**self.inputs, "source": source, "patches": patches, "digest": self.digest}


def plan(
    recipes: Sequence[Build], lock: Lock, root: Path, given: Mapping[str, Path] | None = None
) -> tuple[PlannedBuild, ...]:
    """Plan a stack's builds against the locked packages.

    Args:
        recipes: The builds.
        lock: The lockfile.
        root: Root directory of the installations, which may also contain source archives.
        given: Source archives from the command line, by build name.

    Raises:
        InvalidInput: The patches or one of the ``objects`` are missing.
        MissingPrecondition: A source archive without a hash is missing.
    """
    return tuple(_plan_build(recipe, lock, root, (given or {}).get(recipe.name)) for recipe in recipes)


def _plan_build(recipe: Build, lock: Lock, root: Path, given: Path | None) -> PlannedBuild:
    archive, digest = given, recipe.source.sha256
    recipe = recipe.model_copy(update={"requires": _pin_requirements(recipe, lock)})
    if given is not None or digest is None:
        archive, recipe = user_archive(recipe, root, given)
        digest = digest or documents.sha256(archive)
    return PlannedBuild(
        recipe=recipe,
        source_digest=digest,
        archive=archive,
        patches=_patches(recipe),
        objects=_objects(recipe),
        against={name: _locked_version(lock, name) for name in recipe.against},
    )


def _pin_requirements(recipe: Build, lock: Lock) -> dict[str, str]:
    """Return the build requirements. Those without a version in the recipe get the locked version, if there is one."""
    locked = {name: lock.version(name_of(name)) for name, spec in recipe.requires.items() if not spec}
    return {**recipe.requires, **{name: f"=={version}" for name, version in locked.items() if version}}


def _patches(recipe: Build) -> tuple[RecipeFile, ...]:
    if recipe.patches is None:
        return ()
    places = _places("patches")
    folder = next((place / recipe.patches for place in places if (place / recipe.patches).is_dir()), None)
    files = sorted(folder.glob("*.patch")) if folder else []
    if not files:
        raise _missing(f"patches {recipe.patches}", recipe, places)
    return tuple(map(_read, files))


def _objects(recipe: Build) -> tuple[RecipeFile, ...]:
    places = _places("objects")
    found = []
    for name in recipe.objects:
        file = next((place / name for place in places if (place / name).is_file()), None)
        if file is None:
            raise _missing(f"object {name}", recipe, places)
        found.append(_read(file))
    return tuple(found)


def _places(kind: str) -> list[Path]:
    """Return the directories that may contain recipes' files, in order of precedence."""
    return [root / kind for root in (paths.user_config(), paths.system_config(), paths.shipped() / "recipes")]


def _read(file: Path) -> RecipeFile:
    return RecipeFile(file, hashlib.sha256(file.read_bytes()).hexdigest())


def _missing(what: str, recipe: Build, places: Sequence[Path]) -> InvalidInput:
    return InvalidInput(
        f"{what} of {recipe.name} {recipe.version} not found",
        hint=f"searched: {', '.join(str(place) for place in places)}",
    )


def _locked_version(lock: Lock, name: str) -> str:
    version = lock.version(name)
    if version is None:
        raise MissingPrecondition(
            f"the lockfile of stack {lock.stack} does not contain {name}, which a build depends on"
        )
    return version


@dataclass(frozen=True)
class BuildContext:
    """A build's directories and settings.

    ``source`` is the patched source tree, in which the commands run, ``product`` is an empty directory for the product,
    ``prefix`` is the stack's prefix, and ``tools`` is the directory that contains the build requirements. ``jobs`` is
    the number of parallel compile jobs. ``objects`` are C files to compile first.
    """

    recipe: Build
    source: Path
    product: Path
    prefix: Path
    tools: Path
    jobs: int
    objects: tuple[Path, ...] = ()

    def fill(self, text: str) -> str:
        """Replace ``{tools}`` in a string from the recipe with the tools directory."""
        return text.replace("{tools}", str(self.tools))


class BuildKind(Protocol):
    """A kind of build. If ``relocatable`` is set, a cached product can be installed into any prefix."""

    relocatable: bool

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        """Return the commands that build the product, in order; they run in ``place.source``."""

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        """Return the commands that install a product into the plan's prefix."""


class Packager(Protocol):
    """An installer for wheels and their build requirements."""

    def fetch_source(self, plan: InstallPlan, build: Build, wanted: Path, directory: Path) -> InstallStep:
        """Return the command that downloads the source archive into ``directory``.

        ``wanted`` is a requirements file that contains the archive's hash.
        """

    def build_tools(self, plan: InstallPlan, build: Build, directory: Path) -> InstallStep:
        """Return the command that installs the build requirements into ``directory``, outside of the stack."""

    def install_wheel(self, plan: InstallPlan, wheel: Path) -> InstallStep:
        """Return the command that installs a built wheel into the prefix, without dependencies."""

    def run(self, step: InstallStep, log: Path, *, meanwhile: Callable[[], object] | None = None) -> None:
        """Run a command and append its output to ``log``; ``meanwhile`` is called while it runs."""


class _Autotools:
    """A build that runs ``./configure && make && make install`` and installs into the stack's prefix.

    The product is the directory tree that ``make install`` writes to DESTDIR. The installed files are below the path of
    the prefix in this tree. They contain that path, for example in run paths, so a product only works with one prefix.
    """

    relocatable = False

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        staged = _staged(place.product, place.prefix)
        configure = map(place.fill, place.recipe.configure)
        steps = [
            *(_compile_object(file, place.tools) for file in place.objects),
            InstallStep("configure", ("./configure", f"--prefix={place.prefix}", *configure)),
            InstallStep("compile", ("make",)),
            InstallStep("install", ("make", "install", f"DESTDIR={place.product}")),
        ]
        if place.recipe.link_programs:
            programs, bin_ = staged / place.recipe.link_programs, staged / "bin"
            find = ("find", str(programs), "-type", "f", "-perm", "-u+x")
            link = ("-exec", "ln", "--symbolic", "--relative", "--target-directory", str(bin_), "{}", "+")
            steps += [
                InstallStep("make bin", ("mkdir", "-p", str(bin_))),
                InstallStep("link the programs", (*find, *link)),
            ]
        return tuple(steps)

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        staged = _staged(product, plan.prefix)
        if not staged.is_dir():
            raise BuildFailed(f"`make install` installed nothing below {plan.prefix}: it ignores --prefix or DESTDIR")
        return (InstallStep(f"copy to {plan.prefix}", ("cp", "-a", f"{staged}/.", str(plan.prefix))),)


def _compile_object(file: Path, directory: Path) -> InstallStep:
    argv = ("cc", "-O2", "-fPIC", "-c", str(file), "-o", str(directory / f"{file.stem}.o"))
    return InstallStep(f"compile {file.name}", argv)


def _staged(product: Path, prefix: Path) -> Path:
    """Return the directory in the product (the DESTDIR of ``make install``) that contains the prefix's files."""
    return product / prefix.relative_to(prefix.anchor)


class _Wheel:
    """Wheels built by the project's build backend, without isolation from the installed stack.

    The product is a directory with one wheel.
    """

    relocatable = True

    def commands(self, place: BuildContext) -> tuple[InstallStep, ...]:
        options = ("--wheel", "--no-build-isolation", "--no-config", "--offline")
        python = str(place.prefix / "bin" / "python")
        words = ("--python", python, "--out-dir", str(place.product), str(place.source))
        return (InstallStep("build the wheel", (find_uv_bin(), "build", *options, *words)),)

    def installation(self, plan: InstallPlan, provider: Packager, product: Path) -> tuple[InstallStep, ...]:
        wheels = sorted(product.glob("*.whl"))
        if len(wheels) != 1:
            raise BuildFailed(f"expected one wheel in {product}, got {len(wheels)}")
        return (provider.install_wheel(plan, wheels[0]),)


KINDS: Mapping[str, BuildKind] = {"autotools": _Autotools(), "wheel": _Wheel()}
