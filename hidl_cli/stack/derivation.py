"""Derived stacks, which add requirements to existing stacks and are stored in the user's overlay."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, HidlError, InvalidInput, Mark, MissingPrecondition, Problem, UsageError
from hidl_cli.inputs import load, overlay
from hidl_cli.inputs.overlay import OverlayEntry
from hidl_cli.redaction import redact
from hidl_cli.stack import schema
from hidl_cli.stack.checks import RULES, load_stack
from hidl_cli.stack.install import make_lock, plan_install
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.schema import WHEEL_EXPECTED, Accelerator, Stack, UnusableRequirement

_BYTES = 4 * 2**20  # maximum size of a requirements file
_COMMENT = re.compile(r"(^|\s+)#.*$")
_OPTION = re.compile(r"(?P<name>--[a-z-]+|-[a-zA-Z])(?:\s*=\s*|\s+|(?<=^-[a-zA-Z])|$)(?P<value>.*)")

_INCLUDES = {"-r": False, "--requirement": False, "-c": True, "--constraint": True}
#: Options that hidl always implies, because lockfiles have hashes and only wheels are installed.
_GRANTED = ("--require-hashes", "--prefer-binary", "--only-binary")
_SOURCES = (
    "-i", "--index-url", "--pypi-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--trusted-host",
)  # fmt: skip
_REFUSED = {
    **dict.fromkeys(("-e", "--editable"), ("an editable installation cannot be locked", WHEEL_EXPECTED)),
    **dict.fromkeys(
        _SOURCES,
        (
            "{name} is unsupported in requirements files",
            "pip's settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf) or `wheels` of the site",
        ),
    ),
    "--pre": ("--pre is unsupported", "a specifier that includes the pre-release, such as name>=2.0rc1"),
    "--no-binary": ("--no-binary is unsupported: stacks are installed from wheels", WHEEL_EXPECTED),
}


@dataclass(frozen=True)
class UserRequirement:
    """A normalized requirement and its origin, which is a line in a file or ``--with``."""

    text: str
    by: str
    is_constraint: bool = False


#: An additional check for a requirement; raises ``UnusableRequirement``.
Check = Callable[[str], None]


def read(words: Sequence[str], files: Sequence[Path], check: Check) -> tuple[UserRequirement, ...]:
    """Read requirements from the command line and from files. Raises ``InvalidInput`` listing all problems."""
    reader = _Reader(check)
    for word in words:
        reader.add(word, f"--with {word!r}", None)
    for file in files:
        reader.read(file, constraints=False, named_in=None)
    if reader.problems:
        count = len(reader.problems)
        raise InvalidInput(f"{count} invalid requirement{'s' if count > 1 else ''}", problems=reader.problems)
    return tuple(dict.fromkeys(reader.requirements))


class _Reader:
    def __init__(self, check: Check) -> None:
        self.check = check
        self.requirements: list[UserRequirement] = []
        self.problems: list[Problem] = []
        self._read: set[tuple[Path, bool]] = set()

    def add(self, text: str, by: str, mark: Mark | None, *, constraint: bool = False) -> None:
        """Add a requirement, or a problem if it is invalid."""
        try:
            parsed = schema.parse(" ".join(text.split()))
            if constraint and "[" in schema.bare(parsed).partition(";")[0]:
                raise UnusableRequirement("constraints cannot have extras", "name and versions")
            if not constraint:
                self.check(parsed)
        except UnusableRequirement as error:
            where = "" if mark else f"{redact(by)}: "
            self.problems.append(Problem(f"{where}{error.message}", error.expected, mark=mark))
        else:
            self.requirements.append(UserRequirement(parsed, by, constraint))

    def read(self, file: Path, *, constraints: bool, named_in: Mark | None) -> None:
        """Add the requirements in a file, unless it has already been read."""
        place = (file.resolve(), constraints)
        if place in self._read:
            return
        self._read.add(place)
        try:
            text = _text(file)
        except UnusableRequirement as error:
            self.problems.append(Problem(error.message, error.expected, mark=named_in))
            return
        for number, line in _logical_lines(text):
            mark = Mark(file, number, 1, max(1, len(line)), redact(line))
            if line.startswith("-"):
                self._option(line, file, mark, constraints=constraints)
            else:
                self.add(line, f"{file}:{number}", mark, constraint=constraints)

    def _option(self, line: str, file: Path, mark: Mark, *, constraints: bool) -> None:
        found = _OPTION.fullmatch(line)
        name = found["name"] if found else line.split(maxsplit=1)[0]
        value = found["value"].strip().strip("\"'") if found else ""
        if name in _INCLUDES and value:
            if "://" in value:
                self.problems.append(Problem(f"{name} refers to a URL", "a file on this machine", mark=mark))
                return
            self.read(file.parent / value, constraints=constraints or _INCLUDES[name], named_in=mark)
        elif name not in _GRANTED:
            message, expected = _REFUSED.get(name, ("unsupported option {name}", "a requirement, -r FILE or -c FILE"))
            self.problems.append(Problem(message.format(name=name), expected, mark=mark))


def _text(file: Path) -> str:
    """Read a requirements file's text.

    Raises ``UnusableRequirement`` if the file is unreadable or a different kind of file.
    """
    if file.suffix in (".toml", ".yaml", ".yml", ".lock", ".cfg", ".py"):
        source = (
            "for a conda environment, write its `pip` packages into one, or create it and use `hidl run --env DIR`"
            if file.suffix in (".yaml", ".yml")
            else "create one from pyproject.toml with: uv pip compile pyproject.toml -o requirements.txt"
        )
        raise UnusableRequirement(f"{file} is not a requirements file", f"such as requirements.txt; {source}")
    try:
        with file.open("rb") as opened:
            content = opened.read(_BYTES + 1)
        if len(content) > _BYTES or b"\0" in content:
            raise UnusableRequirement(f"{file} is not a requirements file", f"text of at most {_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")
    except OSError as error:
        raise UnusableRequirement(f"{file}: {error.strerror}", "a requirements file") from None
    except UnicodeDecodeError:
        raise UnusableRequirement(f"{file} is not UTF-8", "a requirements file in UTF-8") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield numbered lines without comments and blank lines, joining continued lines."""
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        begun = begun if parts else number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            parts.append(line[:-1])
            continue
        whole = _COMMENT.sub("", " ".join([*parts, line])).strip()
        parts = []
        if whole:
            yield begun, whole
    if rest := _COMMENT.sub("", " ".join(parts)).strip():
        yield begun, rest


_MADE_BY = "# Made by: "
#: NumPy versions in stacks for projects that need NumPy 1. The packages in the shipped stacks work with these versions.
_OLD_NUMPY = ">=1.26"
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True)
class Derived:
    """A derived stack, the text of its file, and each requirement's origin."""

    stack: Stack
    base: Stack
    file: Path
    text: str
    requirements: tuple[UserRequirement, ...]

    @property
    def is_kept(self) -> bool:
        """True if the file already defines this stack, apart from comments."""
        return self.file.is_file() and _definition(self.file.read_text(encoding="utf-8")) == _definition(self.text)


def derive(
    base: str, name: str, words: Sequence[str], files: Sequence[Path], *, accelerator: Accelerator, command: str
) -> Derived:
    """Derive a stack from ``base`` without writing its file.

    Args:
        base: Name of an existing stack.
        name: Name of the new stack.
        words: Requirements from the command line.
        files: Requirements files.
        accelerator: The nodes' accelerator.
        command: Command line to be recorded in the file.

    Raises:
        UsageError: The name is invalid or taken.
        InvalidInput: Requirements are invalid; the error lists all of them.
    """
    _check_name(name, base)
    base_stack = load_stack(base)

    def check(text: str) -> None:
        schema.check_build(text, mpi=base_stack.mpi, accelerator=accelerator)

    requirements = read(words, files, check)
    required = sorted({one.text for one in requirements if not one.is_constraint})
    limits = sorted({one.text for one in requirements if one.is_constraint})
    if not required:
        raise UsageError(f"no requirements for stack {name}", hint="--with NAME==VERSION or -r FILE")
    text = _format_stack(name, base_stack, required, limits, command)
    with paths.temporary_directory("stack") as directory:
        file = Path(directory, f"{name}.yaml")
        file.write_text(text, encoding="utf-8")
        stack = load.valid(load.examine(RULES, OverlayEntry("stack", name, file, "file")))
    user_directory = next(place for origin, place in overlay.directories("stack") if origin == "user")
    return Derived(stack, base_stack, user_directory / f"{name}.yaml", text, requirements)


def settle(derived: Derived, order: Order, progress: Progress) -> None:
    """Resolve the stack if no lockfile fits, and then write its definition.

    If the requirements cannot be resolved, the definition remains unchanged.
    """
    try:
        planned = plan_install(order)
    except MissingPrecondition as error:
        if not order.locked:
            raise
        raise MissingPrecondition(
            error.message, hint="run the command without --locked to create the lockfile"
        ) from error
    if planned.plan is None:
        try:
            make_lock(order, progress)
        except BuildFailed as error:
            raise _explain(error, derived) from error
    if not derived.is_kept:
        known = derived.file.is_file()
        documents.write_text(derived.file, derived.text)
        progress.say(f"{'updated' if known else 'defined'} stack {derived.stack.name} in {derived.file}")


def _explain(error: HidlError, derived: Derived) -> BuildFailed:
    """Add the origin of each requirement mentioned in the resolver's message."""
    own = [(one.text if not one.is_constraint else f"{one.text} (constraint)", one.by) for one in derived.requirements]
    base_requirements = [
        (f"{name}{spec}", f"stack {derived.base.name}") for name, spec in derived.base.packages.items()
    ]
    base_requirements += [(text, f"stack {derived.base.name}") for text in derived.base.requirements]
    lines = [
        f"  {schema.bare(text)}: {by}"
        for text, by in (*own, *base_requirements)
        if re.search(rf"(?<![\w.-]){re.escape(schema.name_of(text))}(?![\w-])", error.message)
    ]
    listed = "\n".join(["\nrequired by:", *lines]) if lines else ""
    return BuildFailed(error.message + listed, hint=error.hint or "change a requirement, or derive from another stack")


def _check_name(name: str, base: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid stack name {name!r}", hint="lower-case letters, digits and -, at most 64")
    if name == base:
        raise UsageError(
            f"stack {name} cannot be based on itself",
            hint="pass the original base stack and all requirements; the command replaces the definition",
        )
    entry = next((entry for entry in overlay.list_all("stack") if entry.name == name), None)
    if entry is None:
        return
    if entry.origin != "user" or entry.shadows:
        origin = (entry.shadows[-1] if entry.shadows else entry).origin
        raise UsageError(f"{name} is a {origin} stack", hint="choose another name with --as")
    if not entry.path.read_text(encoding="utf-8", errors="replace").startswith(_MADE_BY):
        raise UsageError(
            f"stack {name} was written by hand: {entry.path}", hint="choose another name with --as, or edit the file"
        )


def _format_stack(name: str, base: Stack, required: Sequence[str], limits: Sequence[str], command: str) -> str:
    """Return the stack file's text, with strings in JSON notation, which is also valid YAML."""
    shown = ", ".join(dict.fromkeys(schema.name_of(text) for text in required))
    title = f"{base.title}, with {shown if len(shown) <= 60 else f'{len(required)} more requirements'}"
    lines = [
        f"{_MADE_BY}{' '.join(command.split())}",
        "# That command writes it again. To edit it by hand, remove these two lines first.",
        f"name: {json.dumps(name)}",
        f"title: {json.dumps(title)}",
        f"extends: {json.dumps(base.name)}",
        *([f"packages: {{numpy: {json.dumps(_OLD_NUMPY)}}}"] if _requires_old_numpy([*required, *limits]) else []),
        "requirements:",
        *(f"  - {json.dumps(text)}" for text in required),
        *(["constraints:"] if limits else []),
        *(f"  - {json.dumps(text)}" for text in limits),
    ]
    return "\n".join(lines) + "\n"


def _requires_old_numpy(requirements: Iterable[str]) -> bool:
    """Return whether a direct NumPy requirement excludes NumPy 2, which the shipped stacks require."""
    from packaging.requirements import Requirement

    named = [Requirement(text) for text in map(schema.bare, requirements) if schema.name_of(text) == "numpy"]
    return any(
        not any(one.specifier.contains(f"2.{minor}.{patch}") for minor in range(20) for patch in range(8))
        for one in named
        if one.url is None
    )


def _definition(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))
