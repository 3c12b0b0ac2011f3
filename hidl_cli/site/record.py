"""Save detected values and measured tuning in the user's own file for a site.

Detected values are also recorded in the user's state directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from hidl_cli import documents, paths
from hidl_cli.errors import HidlError
from hidl_cli.inputs import overlay
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import list_all
from hidl_cli.mpi import Library
from hidl_cli.site import yamledit
from hidl_cli.site.checks import RULES
from hidl_cli.site.discovery import ProbedValue
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
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


def list_settings(names: frozenset[str]) -> list[dict[str, Any]]:
    """Return each setting of a variable in ``names``, with its site, its MPI library and the comment above it.

    Settings are ordered by site. Invalid site files are skipped.
    """
    return [
        {"site": entry.name, "mpi": key, "value": values[name], "why": _comment_above(entry.path, name)}
        for entry in list_all("site")
        if (site := examine(RULES, entry).model)
        for key, values in _tuning_of(site).items()
        for name in sorted(names.intersection(values))
    ]


def save_tuning(site: str, library: Library, variables: Mapping[str, str], *, gpus: bool, why: str) -> Path:
    """Write variables into the user's own file for a site and return its path.

    The variables are set for the site's MPI library that has the same name as ``library``. If there is none, they are
    set for all MPI libraries in stacks that belong to the same family as ``library``. Older values of the variables are
    replaced, but the file's other keys, comments and order are kept.

    Args:
        site: Name of the site.
        library: The MPI library that reads the variables.
        variables: Values by name.
        gpus: Set the variables only for runs that compute on GPUs.
        why: Comment for each variable.

    Raises ``HidlError`` if the file cannot be changed; the hint contains the lines to add.
    """
    if library.name in load_site(site).mpi:
        key: tuple[str, ...] = ("mpi", library.name, *(("with_gpus",) if gpus else ()), "tuning")
    else:
        key = ("tuning", library.family)
    file = user_file(site)
    try:
        old = file.read_bytes().decode() if file.exists() else None  # read_text would convert line endings
        if old is not None and not os.access(file, os.W_OK):
            raise PermissionError(f"{file} is read-only")
        before = {} if old is None else yamledit.values_at(old, key)
        values = [yamledit.Value((*key, name), value, why, was=before.get(name)) for name, value in variables.items()]
        lines = document(yamledit.items(values))
        new = (
            document([YamlItem("name", site), YamlItem("extends", site), *yamledit.items(values)])
            if old is None
            else yamledit.edited(old, values)
        )
        if new is not None:
            documents.write_text(file.resolve(), new, mode=file.stat().st_mode & 0o777 if old is not None else 0o644)
            return file
        reason = "its layout does not allow automatic changes"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise HidlError(f"failed to save the tuning in {file}: {reason}", hint=f"add these lines:\n{lines}")


def _tuning_of(site: Site) -> dict[str, Mapping[str, Any]]:
    """Return the variables for each of the site's MPI libraries, and for each family of the stacks' own libraries."""
    of_libraries = {key: {**each.tuning, **each.with_gpus.tuning} for key, each in site.mpi.items()}
    return {**of_libraries, **{f"stacks' own {family}": values for family, values in site.tuning.items()}}


def _comment_above(file: Path, name: str) -> str:
    """Return the comment above the line that sets ``name`` if it marks a measured value, or else an empty string."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return ""
    above = (first.strip() for first, second in pairwise(lines) if second.strip().startswith(f"{name}:"))
    return next((line.removeprefix("# ") for line in above if line.startswith(f"# {yamledit.MEASURED}")), "")
