"""What a machine answered is kept: in the user's own file of the site, and how it was learned in the user's state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hidl_cli import documents, paths
from hidl_cli.inputs import overlay
from hidl_cli.site import yamledit
from hidl_cli.site.answers import Answer
from hidl_cli.site.yamledit import Item, Value, document

_SCHEMA = "hidl.asked/1"


@dataclass(frozen=True)
class Origin:
    """Which machine was asked, and on which day."""

    host: str
    date: str


@dataclass(frozen=True)
class Record:
    """What was learned earlier, by its path in the site's file, and the modulefiles as they were then, by entry."""

    values: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def is_stale(self, entry: tuple[str, ...]) -> bool:
        """Whether a modulefile of the entry, or what lies beside it, is another than when it was asked for."""
        known = self.files.get(".".join(entry), {})
        return any(_state(Path(file)) != state for file, state in known.items())

    def learned(self, path: tuple[str, ...], value: str | None) -> bool:
        """Whether this value of the site's file is one that was learned."""
        return value is not None and self.values.get(".".join(path)) == value


def read_record(site: str) -> Record:
    """The record of a site; an empty one where there is none that can be read."""
    try:
        found = documents.read_json(_record(site))
        if found["schema"] != _SCHEMA:
            return Record()
        values = {str(path): str(value) for path, value in found["values"].items()}
        files = {str(entry): dict(seen.items()) for entry, seen in found["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return Record()
    return Record(values, files)


def write_record(
    site: str, old: Record, answers: Iterable[Answer], files: Mapping[tuple[str, ...], Sequence[Path]]
) -> None:
    """Add to the record of a site; ``OSError`` where that cannot be written."""
    values = {**old.values, **{".".join(answer.path): answer.value for answer in answers}}
    seen = {".".join(entry): {str(place): _state(place) for place in _watched(each)} for entry, each in files.items()}
    documents.write_json(_record(site), {"schema": _SCHEMA, "values": values, "files": {**old.files, **seen}})


def keep(site: str, answers: Sequence[Answer], old: Record, origin: Origin) -> Path | None:
    """Put the answers into the user's own file of the site, and return its path; None where that is not safe.

    A file that is there keeps its keys, comments and order. Raises ``OSError`` where it cannot be written.
    """
    file = user_file(site)
    made = text(site, answers, old, origin)
    if made is not None:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        documents.write_text(file.resolve(), made, mode=mode)
    return file if made is not None else None


def text(site: str, answers: Sequence[Answer], old: Record, origin: Origin) -> str | None:
    """The text of the user's file with the answers; None where it cannot be merged."""
    values = _values(answers, old, origin)
    file = user_file(site)
    try:
        there = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        head = (
            "What hidl asked this site's machines, where the file that it extends leaves it open. Correct what is "
            "wrong: hidl changes nothing that you write.",
        )
        return document([Item("name", site), Item("extends", site), *yamledit.items(values)], head=head)
    except (OSError, ValueError):
        return None
    return yamledit.edited(there, values)


def lines(answers: Sequence[Answer], origin: Origin) -> str:
    """The answers as lines of YAML, for people to add."""
    return document(yamledit.items(_values(answers, Record(), origin)))


def user_file(site: str) -> Path:
    """The user's own file of a site."""
    (_, directory), *_ = overlay.directories("site")
    return directory / f"{site}.yaml"


def _values(answers: Sequence[Answer], old: Record, origin: Origin) -> list[Value]:
    why = f"{yamledit.ORIGIN}{origin.host} on {origin.date}: "
    return [
        Value(answer.path, answer.value, why + answer.source, was=old.values.get(".".join(answer.path)))
        for answer in answers
    ]


def _record(site: str) -> Path:
    return paths.user_state() / "asked" / f"{site}.json"


def _watched(files: Sequence[Path]) -> list[Path]:
    """The modulefiles, and their directories: a new version beside them can be another default."""
    return list(dict.fromkeys([*files, *(file.parent for file in files)]))


def _state(place: Path) -> str:
    try:
        status = place.stat()
    except OSError:
        return "gone"
    return f"{status.st_size}:{status.st_mtime_ns}"
