"""Where a draft goes, and that it is never half written, never over a file that is there, and never faulty."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import TypeAdapter, ValidationError

from hidl_cli import documents
from hidl_cli.errors import HidlError, UsageError
from hidl_cli.inputs import overlay
from hidl_cli.inputs.fields import PATTERNS, Name
from hidl_cli.inputs.overlay import KindName


class HasText(Protocol):
    """A draft of any kind."""

    @property
    def text(self) -> str:
        """The file's text."""


@dataclass(frozen=True)
class Target:
    """The name of what is drafted, and its file; None: standard output."""

    name: str
    file: Path | None
    kind: KindName = "site"


def target(name: str | None, output: str | None, default: str, *, kind: KindName = "site") -> Target:
    """Where to write: ``output`` (``-``: standard output), else the user's own files of that kind.

    ``default`` is the name if none is given; ``-draft`` is put after it where hidl or the centre has a file of that
    name, which is not to be hidden unasked.
    Raises ``UsageError`` for an invalid name, and for a file of another name.
    """
    if output is None or output == "-":
        chosen = name
        if chosen is None:
            known = {
                one.name for entry in overlay.list_all(kind) for one in (entry, *entry.shadows) if one.origin != "user"
            }
            chosen = f"{default}-draft" if default in known else default
        _require_name(chosen, kind)
        (_, directory), *_ = overlay.directories(kind)
        return Target(chosen, None if output == "-" else directory / f"{chosen}.yaml", kind)
    file = Path(output)
    chosen = file.stem if name is None else name
    _require_name(chosen, kind)
    if file.is_dir():
        return Target(chosen, file / f"{chosen}.yaml", kind)
    if file.name != f"{chosen}.yaml":
        raise UsageError(
            f"{kind} {chosen} cannot be written to {file.name}, as hidl finds a {kind} by its file's name",
            hint=f"call the file {chosen}.yaml",
        )
    return Target(chosen, file, kind)


def require_free(target: Target, *, force: bool) -> None:
    """Raises ``UsageError`` where the file is there already, unless ``force``."""
    if target.file is not None and (target.file.exists() or target.file.is_symlink()) and not force:
        raise UsageError(
            f"{target.file} is there already",
            hint=f"name another {target.kind} or --output, or overwrite it with --force",
        )


def write(draft: HasText, file: Path) -> None:
    """Write the draft beside its place and rename it into it; ``HidlError`` where that cannot be done."""
    try:
        documents.write_text(file, draft.text)
    except OSError as error:
        raise HidlError(
            f"{file} cannot be written: {error.strerror or error}", hint="write it elsewhere with --output FILE"
        ) from error


def is_found(target: Target) -> bool:
    """Whether hidl finds this file by the name."""
    return any(entry.path == target.file for entry in overlay.list_all(target.kind))


def hidden(target: Target) -> tuple[Path, ...]:
    """The files of the same name that this one hides from now on."""
    entries = [entry for entry in overlay.list_all(target.kind) if entry.path == target.file]
    return tuple(below.path for entry in entries for below in entry.shadows)


def _require_name(name: str, kind: KindName) -> None:
    try:
        TypeAdapter(Name).validate_python(name)
    except ValidationError:
        pattern = next(words for words in PATTERNS.values() if words.startswith("lower-case letters, digits, and"))
        raise UsageError(f"'{name}' cannot be a {kind}'s name", hint=f"a name is {pattern}") from None
