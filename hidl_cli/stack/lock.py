"""Lockfiles, each of which is a stack resolved for one Python, platform and accelerator.

The header records the lockfile's target and requirements. The body is a plain requirements file with hashes, which pip
and uv can install without hidl.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hidl_cli import paths
from hidl_cli.errors import InvalidInput, Mark, Problem
from hidl_cli.stack.schema import Stack, find_unserved

if TYPE_CHECKING:
    from hidl_cli.stack.target import Target

SCHEMA = "hidl.lock/1"

_HEADER = re.compile(r"# ([a-z]+): (.*)")
_PACKAGE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)((?: --hash=sha256:[0-9a-f]{64})+)")
_KEYS = ("schema", "stack", "python", "platform", "glibc", "accelerator", "inputs")


@dataclass(frozen=True)
class Package:
    """A locked package; ``hashes`` are the hexadecimal SHA-256 digests of its permitted files."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Lock:
    """A lockfile for a stack that is installed from wheels.

    ``glibc`` is the oldest supported C library, and ``requires`` contains the recipe's requirements. ``gpu`` is the GPU
    architecture that limits the versions because newer releases have no kernels for it, or None if no GPU limits them.
    """

    stack: str
    python: str
    platform: str
    glibc: tuple[int, int] | None
    accelerator: str
    requires: tuple[str, ...]
    packages: tuple[Package, ...]
    gpu: str | None = None

    @property
    def filename(self) -> str:
        """The name of the lockfile."""
        words = (self.stack, self.python, self.platform, self.accelerator, self.gpu)
        return f"{'-'.join(filter(None, words))}.txt"

    @property
    def inputs(self) -> str:
        """The SHA-256 of the requirements."""
        return _sha256("\n".join(self.requires))

    @property
    def digest(self) -> str:
        """The SHA-256 of the body, which lists the installed packages."""
        return _sha256(self.body())

    @property
    def wheels(self) -> Lock:
        """The lockfile of the wheels, which is this one, because all of its packages are wheels."""
        return self

    def without(self, names: Collection[str]) -> Lock:
        """Return a copy without these packages."""
        return replace(self, packages=tuple(package for package in self.packages if package.name not in names))

    def version(self, package: str) -> str | None:
        """Return the locked version of a package, or None if it is not locked."""
        return next((locked.version for locked in self.packages if locked.name == package), None)

    def lines(self) -> tuple[str, ...]:
        """Return one requirement, including its hashes, per package."""
        return tuple(
            " \\\n    ".join([f"{package.name}=={package.version}", *(f"--hash=sha256:{h}" for h in package.hashes)])
            + "\n"
            for package in self.packages
        )

    def body(self) -> str:
        """Return the text of the requirements file without the header."""
        return "".join(self.lines())

    def text(self) -> str:
        """Return the content of the lockfile."""
        header = {
            "schema": SCHEMA,
            "stack": self.stack,
            "python": self.python,
            "platform": self.platform,
            "glibc": "none" if self.glibc is None else ".".join(map(str, self.glibc)),
            "accelerator": self.accelerator,
            **({"gpu": self.gpu} if self.gpu else {}),
            "inputs": f"sha256:{self.inputs}",
        }
        lines = [f"# {key}: {value}" for key, value in header.items()]
        lines += [f"# requires: {requirement}" for requirement in self.requires]
        lines += ["# Without hidl: pip install --require-hashes -r <this file>"]
        return "\n".join(lines) + "\n" + self.body()


class Locked(Protocol):
    """A stack's lockfile, regardless of the provider that resolved it."""

    @property
    def stack(self) -> str:
        """The stack's name."""

    @property
    def filename(self) -> str:
        """The name of the lockfile."""

    @property
    def digest(self) -> str:
        """The SHA-256 of the locked packages."""

    @property
    def packages(self) -> tuple[Package, ...]:
        """All locked packages."""

    @property
    def wheels(self) -> Lock:
        """The lockfile of the packages that are installed as wheels."""

    def version(self, package: str) -> str | None:
        """Return the locked version of a package, or None if it is not locked."""

    def text(self) -> str:
        """Return the content of the lockfile."""


@dataclass(frozen=True)
class PassedOver:
    """One of the stack's lockfiles that cannot be used, and the reason."""

    file: Path
    reason: str


@dataclass(frozen=True)
class Choice:
    """The selected lockfile, if any, and the rejected ones that were found before it."""

    lock: Locked | None
    file: Path | None
    passed_over: tuple[PassedOver, ...]


def requirements(stack: Stack) -> tuple[str, ...]:
    """Return the stack's requirements, sorted; constraints begin with ``-c``, sources with ``-i`` or ``-f``."""
    packages = [f"{_normalized(name)}{spec.replace(' ', '')}" for name, spec in stack.packages.items()]
    options = [f"-c {limit}" for limit in stack.constraints]
    options += [*(f"-i {url}" for url in stack.indexes), *(f"-f {place}" for place in stack.find_links)]
    return tuple(sorted({*packages, *stack.requirements, *options}))


def directories(*roots: Path) -> tuple[Path, ...]:
    """Return the lockfile directories by precedence: the user's, the system's, those in ``roots``, and hidl's."""
    return (
        paths.user_config() / "locks",
        paths.system_config() / "locks",
        *(root / "locks" for root in roots),
        paths.shipped() / "recipes" / "locks",
    )


def choose(stack: Stack, target: Target, places: Sequence[Path]) -> Choice:
    """Select the first lockfile in ``places`` that matches the recipe and the target.

    Raises ``InvalidInput`` if a lockfile is damaged.
    """
    stack = stack.on(target.accelerator, target.machine)
    name = f"{stack.name}-{target.python}-{target.platform}-{target.accelerator}"
    names = [*(f"{name}-{gpu}.txt" for gpu in target.gpus), f"{name}.txt"]
    passed_over: list[PassedOver] = []
    for file in (place / name for place in places for name in names):
        if not file.is_file():
            continue
        lock = read(file)
        reason = why_unfit(lock, stack, target)
        if reason is None:
            return Choice(lock, file, tuple(passed_over))
        passed_over.append(PassedOver(file, reason))
    return Choice(None, None, tuple(passed_over))


def why_unfit(lock: Lock, stack: Stack, target: Target) -> str | None:
    """Return why the lockfile cannot be used for the stack on the target, or None if it can."""
    wanted = requirements(stack)
    if lock.requires != wanted:
        return f"the recipe has changed: {_changes(lock.requires, wanted)}"
    theirs = (lock.stack, lock.python, lock.platform, lock.accelerator)
    ours = (stack.name, target.python, target.platform, target.accelerator)
    if theirs != ours:
        return f"it was created for {' '.join(theirs)}, not for {' '.join(ours)}"
    if lock.glibc is not None and (target.glibc is None or target.glibc < lock.glibc):
        return f"it requires glibc {'.'.join(map(str, lock.glibc))}, which this machine does not have"
    lacking = (find_unserved(each.name, each.version, target.gpus, target.machine) for each in lock.packages)
    return next((str(each) for each in lacking if each), None)


def read(file: Path) -> Lock:
    """Read a lockfile. Raises ``InvalidInput`` if the file is not a valid lockfile."""
    try:
        return parse(file.read_text(encoding="utf-8"), file)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"lockfile {file} cannot be read: {error}") from error


def parse(text: str, file: Path) -> Lock:
    """Parse the text of the lockfile ``file``. Raises ``InvalidInput`` with the position of the first error."""
    header: dict[str, str] = {}
    requires: list[str] = []
    packages: list[Package] = []
    for number, line in _logical_lines(text):
        if match := _HEADER.fullmatch(line):
            key, value = match.groups()
            requires.append(value) if key == "requires" else header.setdefault(key, value)
        elif match := _PACKAGE.fullmatch(line):
            name, version, hashes = match.groups()
            packages.append(Package(name, version, tuple(re.findall(r"[0-9a-f]{64}", hashes))))
        elif line and not line.startswith("#"):
            mark = Mark(file, number, 1, len(line), line)
            raise _faulty(mark, "not a pinned package with hashes", "name==version --hash=sha256:...")
    for key in _KEYS:
        if key not in header:
            raise _faulty(Mark(file), f"the header has no `{key}`", f"# {key}: ...")
    if header["schema"] != SCHEMA:
        raise _faulty(Mark(file), f"unknown schema {header['schema']!r}", SCHEMA)
    glibc = re.fullmatch(r"(\d+)\.(\d+)|none", header["glibc"])
    if glibc is None:
        raise _faulty(Mark(file), f"invalid glibc version {header['glibc']!r}", "# glibc: 2.28, or none")
    lock = Lock(
        stack=header["stack"],
        python=header["python"],
        platform=header["platform"],
        glibc=None if header["glibc"] == "none" else (int(glibc[1]), int(glibc[2])),
        accelerator=header["accelerator"],
        requires=tuple(requires),
        packages=tuple(packages),
        gpu=header.get("gpu"),
    )
    if header["inputs"] != f"sha256:{lock.inputs}":
        raise _faulty(Mark(file), "`inputs` is not the hash of the `requires` lines", "an unedited header")
    return lock


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Return numbered lines. A line that ends with a backslash is joined with the next one."""
    lines: list[tuple[int, str]] = []
    continued = False
    for number, line in enumerate(text.splitlines(), start=1):
        bare = line.strip()
        part = bare.removesuffix("\\").rstrip()
        if continued:
            lines[-1] = (lines[-1][0], f"{lines[-1][1]} {part}")
        else:
            lines.append((number, part))
        continued = bare.endswith("\\")
    return lines


def _changes(before: Sequence[str], now: Sequence[str]) -> str:
    """Describe the differences between two lists of requirements."""
    several = {name for side in (before, now) for name, count in Counter(map(_package, side)).items() if count > 1}
    old, new = (
        {line if _package(line) in several else _package(line): line for line in side} for side in (before, now)
    )
    words = [f"{new[name]} was added" for name in new if name not in old]
    words += [f"{old[name]} was removed" for name in old if name not in new]
    words += [f"{old[name]} is now {new[name]}" for name in new if name in old and old[name] != new[name]]
    return ", ".join(words) or "their order"


def _package(line: str) -> str:
    """Return a requirement's package, or the whole line for a constraint or a package source."""
    return line if line.startswith("-") else re.split(r"[^A-Za-z0-9._-]", line)[0]


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _faulty(mark: Mark, message: str, expected: str) -> InvalidInput:
    return InvalidInput(
        f"lockfile {mark.file} is damaged",
        problems=[Problem(message, expected, mark=mark)],
        hint="remove the file, or create a new one with `hidl stack lock`",
    )
