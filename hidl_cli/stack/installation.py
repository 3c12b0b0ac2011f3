"""Installations: prefixes that hold one locked stack each, found by site and stack.

::

    <root>/<site>/<stack>/<id>/              a prefix; it counts as soon as its manifest.json is there, written last
    <root>/<site>/<stack>/current            a link to the installation in use
    <root>/<site>/<stack>/previous           a link to the one that was in use before it
    <root>/modulefiles/<site>/<stack>/<id>   the modulefile of each, and .version, which names the one in use
    <root>/locks/                            locks that were made here
    <root>/logs/                             what was said while installing
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hidl_cli import paths
from hidl_cli.documents import read_json, write_text
from hidl_cli.errors import MissingPrecondition
from hidl_cli.quoting import sh
from hidl_cli.stack import own_wheel

if TYPE_CHECKING:
    from hidl_cli.mpi import Family
    from hidl_cli.site.schema import Site

SCHEMA = "hidl.installation/1"
CURRENT, PREVIOUS = "current", "previous"
MANIFEST = "manifest.json"

_ID = re.compile(r"[0-9a-f]{12}")

#: A stack's Python must not see modules of another one, nor look for its library elsewhere.
UNSET = ("PYTHONHOME", "PYTHONPATH")


@dataclass(frozen=True)
class Installation:
    """A published installation. ``manifest`` is the document of schema ``hidl.installation/1``."""

    prefix: Path
    manifest: Mapping[str, Any] = field(repr=False)

    @classmethod
    def at(cls, prefix: Path) -> Installation:
        """An installation that is assumed to be at ``prefix``: for plans that are not run. Nothing is read."""
        return cls(prefix, {"lock": {"digest": ""}})

    @property
    def root(self) -> Path:
        """The root that it lies below."""
        return self.prefix.parents[2]

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.prefix / "bin" / "python"

    def run_module(self, module: str) -> tuple[str, ...]:
        """The begin of the command line that runs a module of hidl's with its Python."""
        return (str(self.python), "-m", module)

    @property
    def mpiexec(self) -> Path:
        """The mpiexec of the very MPI that its mpi4py is linked to."""
        return self.prefix / "bin" / "mpiexec"

    @property
    def activate(self) -> Path:
        """The script that a POSIX shell sources to use it."""
        return self.prefix / "activate.sh"

    @property
    def lock(self) -> str:
        """The SHA-256 of the lock's body."""
        return str(self.manifest["lock"]["digest"])

    def version_of(self, package: str) -> str | None:
        """The version of one of its packages, built ones too; None where it has none of that name."""
        built = {build["name"]: build["version"] for build in self.manifest.get("builds", ())}
        version = {**self.manifest.get("packages", {}), **built}.get(package)
        return None if version is None else str(version)

    @property
    def mpi(self) -> tuple[Family, str | None] | None:
        """The family and version of its MPI library; None where its manifest is of before that was noted."""
        noted = self.manifest.get("mpi")
        return (noted["family"], noted["version"]) if noted else None

    @property
    def is_current(self) -> bool:
        """Is it the one in use?"""
        return current(self.prefix.parent) == self.prefix

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with this stack activated: what the activation script does, for programs that hidl starts."""
        kept = {name: value for name, value in base.items() if name not in UNSET}
        path = os.pathsep.join(part for part in (str(self.prefix / "bin"), base.get("PATH")) if part)
        return {**kept, "PATH": path, **variables(self.prefix, self.prefix.parent.name)}


def variables(prefix: Path, stack: str) -> dict[str, str]:
    """The variables that an activated stack sets, beside PATH."""
    return {"VIRTUAL_ENV": str(prefix), "HIDL_STACK": stack}


def root(site: Site, prefix: str | None = None) -> Path:
    """Where installations for ``site`` lie: ``prefix`` if given, else the site's place, else the user's own.

    ``MissingPrecondition`` where the site's place names a variable that is not set.
    """
    return Path(prefix).expanduser().absolute() if prefix else _usual_root(site)


def own_root() -> Path:
    """Where a user installs for himself, and a site whose file names no place."""
    return paths.user_data() / "installations"


def roots(site: Site, prefix: str | None = None) -> tuple[Path, ...]:
    """Where stacks are looked for, in this order: in ``prefix`` alone if given, else the user's own place, the site's.

    Raises what ``root`` raises.
    """
    usual = root(site, prefix)
    return (usual,) if prefix else tuple(dict.fromkeys((own_root(), usual)))


def root_of(site: Site, stack: str, prefix: str | None = None) -> Path:
    """The first of ``roots`` where one of the stack's installations is in use; the last where none is."""
    places = roots(site, prefix)
    return next((place for place in places if current(place / site.name / stack)), places[-1])


def behind(site: Site, root: Path) -> tuple[Path, ...]:
    """``root``, and behind the user's own place the site's, where that is known."""
    try:
        return tuple(dict.fromkeys((root, _usual_root(site)))) if root == own_root() else (root,)
    except MissingPrecondition:
        return (root,)


def _usual_root(site: Site) -> Path:
    place = site.install.root
    if place is None:
        return own_root()
    unset = [name for name in re.findall(r"\$\{?(\w+)", place) if name not in os.environ]
    if unset:
        raise MissingPrecondition(
            f"`install.root` of site {site.name} is {place}, and {', '.join(unset)} is not set",
            hint="set it, or choose a place with --prefix",
        )
    return Path(os.path.expandvars(place)).expanduser().absolute()


def find(site: Site, stack: str, *, root: Path) -> Installation:
    """The installation of ``stack`` in use, made by this very hidl; ``MissingPrecondition`` where there is none."""
    again = hint(stack, site, root)
    prefix = current(root / site.name / stack)
    if prefix is None:
        raise MissingPrecondition(f"stack {stack} is not installed for site {site.name} in {root}", hint=again)
    installation = at(prefix)
    if installation is None:
        python = prefix / "bin" / "python"
        why = "it has no valid manifest" if os.access(python, os.X_OK) else _describe_missing(python)
        raise MissingPrecondition(f"the installation {prefix} is damaged: {why}", hint=again)
    if foreign := of_another_hidl(installation):
        raise MissingPrecondition(foreign, hint=f"{again}; the lock stays the same")
    return installation


def _describe_missing(python: Path) -> str:
    links = f" (a link to {python.readlink()})" if python.is_symlink() else ""
    return f"its interpreter {python}{links} is missing or cannot be executed"


def of_another_hidl(installation: Installation) -> str | None:
    """Why this very hidl cannot use the installation, in words; None where it can."""
    held = installation.manifest["own"]
    libraries = (own_wheel.library(name) for name in own_wheel.libraries() if name in held)
    for wheel in (own_wheel.workloads(), *libraries):
        if held.get(wheel.name, {}).get("digest") != wheel.digest:
            return f"the installation {installation.prefix} holds the {wheel.name} of another hidl than this one"
    return None


def hint(stack: str, site: Site, root: Path) -> str:
    """The command that installs the stack there."""
    words = f"hidl install {sh(stack)}" + ("" if site.name == "local" else f" --site {sh(site.name)}")
    if root == _usual_root(site):
        return words
    return f"{words} --own" if root == own_root() else f"{words} --prefix {sh(str(root))}"


def at(prefix: Path) -> Installation | None:
    """The published installation at ``prefix``; None where there is none, or its manifest is damaged."""
    try:
        manifest = read_json(prefix / MANIFEST)
        whole = manifest["schema"] == SCHEMA and manifest["id"] == prefix.name and _usable(manifest, prefix)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return Installation(prefix, manifest) if whole else None


def _usable(manifest: Mapping[str, Any], prefix: Path) -> bool:
    """Are the parts there that others rely on, and does the interpreter still exist that ``bin/python`` links to?"""
    parts = [manifest["lock"]["digest"], manifest["own"], manifest["site"], manifest["packages"]]
    return None not in parts and os.access(prefix / "bin" / "python", os.X_OK)


def current(stack_directory: Path, link: str = CURRENT) -> Path | None:
    """The prefix that ``current`` (or ``previous``) links to; None where no such link is or it leads elsewhere."""
    try:
        name = str((stack_directory / link).readlink())
    except OSError:
        return None
    return stack_directory / name if _ID.fullmatch(name) else None


def publish(prefix: Path) -> None:
    """Show a complete installation to ``module avail`` and make it the one in use; each change is atomic.

    The one that was in use becomes the previous one; the time of its directory tells until when it was in use.
    """
    directory = modulefiles(prefix.parents[2], prefix.parents[1].name, prefix.parent.name)
    write_text(directory / prefix.name, (prefix / "modulefile").read_text(encoding="utf-8"))
    write_text(directory / ".version", f"#%Module1.0\nset ModulesVersion {prefix.name}\n")
    before = current(prefix.parent)
    if before is not None and before != prefix:
        if before.is_dir():
            os.utime(before)  # first: where it is not allowed, nothing has changed
        _link(before, PREVIOUS)
    _link(prefix, CURRENT)


def _link(prefix: Path, name: str) -> None:
    """Make the link ``name`` beside the prefix lead to it, at once."""
    beside = prefix.with_name(f".{name}")
    beside.unlink(missing_ok=True)
    beside.symlink_to(prefix.name)
    beside.replace(prefix.with_name(name))


@contextmanager
def changing(stack_directory: Path) -> Iterator[None]:
    """``MissingPrecondition`` in the place of an ``OSError``, as where another user has installed the stack."""
    try:
        yield
    except OSError as error:
        at_fault = f": {error.filename}" if error.filename else ""
        raise MissingPrecondition(
            f"cannot change what is installed in {stack_directory}: {error.strerror or error}{at_fault}",
            hint="ask who installed it, or install your own: hidl install STACK --own",
        ) from error


def modulefiles(root: Path, site: str, stack: str) -> Path:
    """The directory of a stack's modulefiles; ``module use`` takes its parent."""
    return root / "modulefiles" / site / stack


def prefixes(stack_directory: Path) -> list[Path]:
    """Every prefix of one stack, published or not; links are none."""
    if not stack_directory.is_dir():
        return []
    return sorted(p for p in stack_directory.iterdir() if _ID.fullmatch(p.name) and p.is_dir() and not p.is_symlink())


def in_use(site: Site, prefix: str | None = None) -> list[Installation]:
    """The installation in use of each stack of the site: the user's own before the site's; ``prefix``: as ``roots``."""
    found: dict[str, Installation] = {}
    for place in roots(site, prefix):
        for each in list_all(place):
            if each.is_current and each.manifest["site"] == site.name:
                found.setdefault(each.prefix.parent.name, each)
    return list(found.values())


def list_all(root: Path) -> Iterator[Installation]:
    """Every published installation below ``root``, by site and stack."""
    for manifest in sorted(root.glob(f"*/*/*/{MANIFEST}")):
        installation = at(manifest.parent) if _ID.fullmatch(manifest.parent.name) else None
        if installation is not None:
            yield installation


def size(prefix: Path) -> int:
    """Bytes on disk below ``prefix``; a file with several names counts once, one that vanishes meanwhile not at all."""
    seen: dict[tuple[int, int], int] = {}
    for directory, _, files in os.walk(prefix):
        for name in files:
            try:
                status = os.lstat(os.path.join(directory, name))  # noqa: PTH118 - ten thousands of files
            except FileNotFoundError:
                continue
            seen[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(seen.values())


def discard(prefix: Path) -> None:
    """Remove a prefix, published or begun: it vanishes at once, and what links in it lead to stays."""
    for left in prefix.parent.glob(".removed-*"):  # by one that was killed
        shutil.rmtree(left, ignore_errors=True)
    if prefix.is_dir() and not prefix.is_symlink():
        gone = prefix.with_name(f".removed-{prefix.name}")
        prefix.rename(gone)
        shutil.rmtree(gone)
