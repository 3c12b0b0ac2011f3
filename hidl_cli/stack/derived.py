"""A stack of the user's own: another stack and further requirements, kept as a file in the user's overlay."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hidl_cli import documents, paths
from hidl_cli.errors import BuildFailed, HidlError, MissingPrecondition, UsageError
from hidl_cli.inputs import load, overlay
from hidl_cli.inputs.overlay import Entry
from hidl_cli.stack import requirement, requirement_files
from hidl_cli.stack.architectures import Accelerator
from hidl_cli.stack.checks import RULES
from hidl_cli.stack.install import draft, make_lock
from hidl_cli.stack.load import load_stack
from hidl_cli.stack.order import Order, Progress
from hidl_cli.stack.requirement_files import Asked
from hidl_cli.stack.schema import Stack

_MADE_BY = "# Made by: "
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


@dataclass(frozen=True)
class Derived:
    """The stack, its file with the text that it gets, and who asks for each requirement."""

    stack: Stack
    base: Stack
    file: Path
    text: str
    asked: tuple[Asked, ...]

    @property
    def is_kept(self) -> bool:
        """Does the file define this very stack? The command that made it does not count."""
        return self.file.is_file() and _definition(self.file.read_text(encoding="utf-8")) == _definition(self.text)


def derive(
    base: str, name: str, words: Sequence[str], files: Sequence[Path], *, accelerator: Accelerator, command: str
) -> Derived:
    """Return the stack ``name``: ``base`` with the requirements of ``words`` and ``files``. Nothing is written.

    ``accelerator``: of the nodes that it is for. ``command``: how it is made, for people.

    Raises ``UsageError`` for a name that is taken or cannot be one, ``InvalidInput`` with every invalid requirement.
    """
    _refuse_name(name, base)
    of = load_stack(base)

    def check(text: str) -> None:
        requirement.refuse_other_build(text, mpi=of.mpi, accelerator=accelerator)

    asked = requirement_files.read(words, files, check)
    required = sorted({one.text for one in asked if not one.is_constraint})
    limits = sorted({one.text for one in asked if one.is_constraint})
    if not required:
        raise UsageError(f"no requirement for stack {name}", hint="--with NAME==VERSION, or -r FILE that holds some")
    text = _text(name, of, required, limits, command)
    with paths.temporary_directory("stack") as directory:
        draft_file = Path(directory, f"{name}.yaml")
        draft_file.write_text(text, encoding="utf-8")
        stack = load.valid(load.examine(RULES, Entry("stack", name, draft_file, "file")))
    return Derived(stack, of, _place(name), text, asked)


def settle(derived: Derived, order: Order, progress: Progress) -> None:
    """Make the lock unless one fits, then keep the definition, so that every other command knows the stack.

    If the requirements cannot be resolved, the stack stays what it was.
    """
    try:
        planned = draft(order)
    except MissingPrecondition as error:
        if not order.locked:
            raise
        raise MissingPrecondition(error.message, hint="without --locked, the lock is made") from error
    if planned.plan is None:
        try:
            make_lock(order, progress)
        except BuildFailed as error:
            raise _explained(error, derived) from error
    if not derived.is_kept:
        known = derived.file.is_file()
        documents.write_text(derived.file, derived.text)
        progress.say(f"stack {derived.stack.name} is {'changed' if known else 'defined'} in {derived.file}")


def _explained(error: HidlError, derived: Derived) -> BuildFailed:
    """Add who asks for what the resolver's message names."""
    own = [(one.text if not one.is_constraint else f"{one.text} (constraint)", one.by) for one in derived.asked]
    of_base = [(f"{name}{spec}", f"stack {derived.base.name}") for name, spec in derived.base.packages.items()]
    of_base += [(text, f"stack {derived.base.name}") for text in derived.base.requirements]
    lines = [
        f"  {requirement.bare(text)}: {by}"
        for text, by in (*own, *of_base)
        if re.search(rf"(?<![\w.-]){re.escape(requirement.name_of(text))}(?![\w-])", error.message)
    ]
    listed = "\n".join(["\nasked for by:", *lines]) if lines else ""
    return BuildFailed(error.message + listed, hint=error.hint or "change a requirement, or base it on another stack")


def _refuse_name(name: str, base: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"invalid stack name {name!r}", hint="lower-case letters, digits and -, at most 64")
    if name == base:
        raise UsageError(
            f"stack {name} cannot be based on itself",
            hint="name the stack that it is based on, and all requirements: the command replaces them",
        )
    entry = next((entry for entry in overlay.list_all("stack") if entry.name == name), None)
    if entry is None:
        return
    if entry.origin != "user" or entry.shadows:
        origin = (entry.shadows[-1] if entry.shadows else entry).origin
        raise UsageError(f"{name} is a {origin} stack", hint="choose another name with --as")
    if not entry.path.read_text(encoding="utf-8", errors="replace").startswith(_MADE_BY):
        raise UsageError(
            f"stack {name} was written by hand: {entry.path}", hint="choose another name with --as, or edit that file"
        )


def _place(name: str) -> Path:
    return next(directory for origin, directory in overlay.directories("stack") if origin == "user") / f"{name}.yaml"


def _text(name: str, base: Stack, required: Sequence[str], limits: Sequence[str], command: str) -> str:
    """The file; strings of JSON are strings of YAML."""
    shown = ", ".join(dict.fromkeys(requirement.name_of(text) for text in required))
    title = f"{base.title}, with {shown if len(shown) <= 60 else f'{len(required)} further requirements'}"
    lines = [
        f"{_MADE_BY}{' '.join(command.split())}",
        "# That command writes it again. To edit it by hand, remove these two lines first.",
        f"name: {json.dumps(name)}",
        f"title: {json.dumps(title)}",
        f"extends: {json.dumps(base.name)}",
        "requirements:",
        *(f"  - {json.dumps(text)}" for text in required),
        *(["constraints:"] if limits else []),
        *(f"  - {json.dumps(text)}" for text in limits),
    ]
    return "\n".join(lines) + "\n"


def _definition(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))
