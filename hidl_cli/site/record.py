"""Save detected values in the user's own file for a site, and keep a record of them in the user's state directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hidl_cli import documents, paths
from hidl_cli.inputs import overlay
from hidl_cli.site import yamledit
from hidl_cli.site.discovery import ProbedValue
from hidl_cli.site.yamledit import Value, YamlItem, document

_SCHEMA = "hidl.asked/1"


@dataclass(frozen=True)
class Origin:
    """The machine on which values were detected, and the date."""

    host: str
    date: str


@dataclass(frozen=True)
class DetectionRecord:
    """Values that were detected earlier, and the state of the modulefiles at that time.

    The keys of ``values`` are paths in the site file; those of ``files`` are the entries that load the modules.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def is_stale(self, entry: tuple[str, ...]) -> bool:
        """Return whether a modulefile of the entry, or its directory, has changed since the entry was probed."""
        known = self.files.get(".".join(entry), {})
        return any(_state(Path(file)) != state for file, state in known.items())

    def learned(self, path: tuple[str, ...], value: str | None) -> bool:
        """Return whether a value in the site's file was detected earlier."""
        return value is not None and self.values.get(".".join(path)) == value


def read_record(site: str) -> DetectionRecord:
    """Read a site's record. The result is empty if there is no record or if it cannot be read."""
    try:
        found = documents.read_json(_record(site))
        if found["schema"] != _SCHEMA:
            return DetectionRecord()
        values = {str(path): str(value) for path, value in found["values"].items()}
        files = {str(entry): dict(seen.items()) for entry, seen in found["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return DetectionRecord()
    return DetectionRecord(values, files)


def write_record(
    site: str, old: DetectionRecord, answers: Iterable[ProbedValue], files: Mapping[tuple[str, ...], Sequence[Path]]
) -> None:
    """Add values and modulefiles to a site's record. Raises ``OSError`` if the record cannot be written."""
    values = {**old.values, **{".".join(answer.path): answer.value for answer in answers}}
    seen = {".".join(entry): {str(place): _state(place) for place in _watched(each)} for entry, each in files.items()}
    documents.write_json(_record(site), {"schema": _SCHEMA, "values": values, "files": {**old.files, **seen}})


def keep(site: str, answers: Sequence[ProbedValue], old: DetectionRecord, origin: Origin) -> Path | None:
    """Save values in the user's own file for the site and return its path, or None if that is not safe.

    An existing file keeps its keys, comments and order. Raises ``OSError`` if the file cannot be written.
    """
    file = user_file(site)
    made = text(site, answers, old, origin)
    if made is not None:
        mode = file.stat().st_mode & 0o777 if file.exists() else 0o644
        documents.write_text(file.resolve(), made, mode=mode)
    return file if made is not None else None


def text(site: str, answers: Sequence[ProbedValue], old: DetectionRecord, origin: Origin) -> str | None:
    """Return the text of the user's file with the values added, or None if they cannot be merged."""
    values = _values(answers, old, origin)
    file = user_file(site)
    try:
        there = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        head = (
            "Values that hidl detected on this site's machines because the file that it extends leaves them open. "
            "Correct what is wrong; hidl does not change values that you set.",
        )
        return document([YamlItem("name", site), YamlItem("extends", site), *yamledit.items(values)], head=head)
    except (OSError, ValueError):
        return None
    return yamledit.edited(there, values)


def lines(answers: Sequence[ProbedValue], origin: Origin) -> str:
    """Format values as YAML lines for users to add."""
    return document(yamledit.items(_values(answers, DetectionRecord(), origin)))


def user_file(site: str) -> Path:
    """Return the path of the user's own file for a site."""
    (_, directory), *_ = overlay.directories("site")
    return directory / f"{site}.yaml"


def _values(answers: Sequence[ProbedValue], old: DetectionRecord, origin: Origin) -> list[Value]:
    why = f"{yamledit.ORIGIN}{origin.host} on {origin.date}: "
    return [
        Value(answer.path, answer.value, why + answer.source, was=old.values.get(".".join(answer.path)))
        for answer in answers
    ]


def _record(site: str) -> Path:
    return paths.user_state() / "asked" / f"{site}.json"


def _watched(files: Sequence[Path]) -> list[Path]:
    """Return the modulefiles and their directories, because a new file there may become the default version."""
    return list(dict.fromkeys([*files, *(file.parent for file in files)]))


def _state(place: Path) -> str:
    try:
        status = place.stat()
    except OSError:
        return "gone"
    return f"{status.st_size}:{status.st_mtime_ns}"
