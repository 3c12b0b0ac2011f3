"""The file of a capsule: a zip archive of the run's documents, its lock, its stack and its site.

::

    capsule.json                       what it holds, with the SHA-256 of every other member; versions; inputs
    run/plan.json  run/job.sh  ...     the run's own documents
    run/stdout.log  run/stderr.log     the end of what it printed
    lock.txt                           exact versions and hashes of its stack
    stack.yaml  site.yaml              the files with all that they extend

A capsule may come from a stranger: its members are named here, its size is limited, and nothing of it is unpacked to a
place that it chooses.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hidl_cli.errors import InvalidInput, Problem, UsageError
from hidl_cli.inputs.fields import FileName, Name

SCHEMA = "hidl.capsule/1"
SUFFIX = ".capsule"

#: The documents of a run that a capsule holds; it cannot do without the first three.
OF_THE_RUN = ("plan.json", "status.json", "metrics.json", "job.sh", "verdict.json", "hosts", "stdout.log", "stderr.log")
_NEEDED = ("run/plan.json", "run/status.json", "run/metrics.json", "lock.txt", "stack.yaml", "site.yaml")
_KNOWN = frozenset({*(f"run/{name}" for name in OF_THE_RUN), *_NEEDED})
_INDEX = "capsule.json"

#: Bytes of a member, and of all; a plan with thousands of steps takes some megabytes.
_MOST = 32 << 20
_MOST_OF_ALL = 64 << 20
#: The earliest time that a zip archive can hold: the same run makes the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Input:
    """A file of the user's that the run read, as it was when the run was submitted.

    ``modified``: it had changed when the capsule was made; ``sha256`` is "" if the run's content is then not known.
    """

    path: str
    size: int
    sha256: str
    modified: bool = False


@dataclass(frozen=True)
class Hidden:
    """A hidden word: ``***NAME***`` in the members, at ``places`` such as ``run/plan.json: parameters.token``."""

    name: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Capsule:
    """What a run was. ``lock_name`` is the name that the lock needs to be found, ``members`` the files by name.

    ``hidden``: the words that were secrets; None in a capsule of hidl 0.1, which did not list them. ``digest``: the
    SHA-256 of the whole file.
    """

    run: str
    hidl: str
    stack: str
    lock_name: str
    packages: Mapping[str, str]
    inputs: tuple[Input, ...]
    members: Mapping[str, bytes] = field(repr=False)
    digest: str = ""
    hidden: tuple[Hidden, ...] | None = ()

    def text(self, member: str) -> str:
        """Return a member as text; ``InvalidInput`` unless it is UTF-8."""
        try:
            return self.members[member].decode()
        except UnicodeDecodeError as error:
            raise _invalid(f"{member} is not UTF-8 text") from error

    def to_bytes(self) -> bytes:
        """Return the file; the same capsule gives the same bytes."""
        index = {
            "schema": SCHEMA,
            "run": self.run,
            "hidl": self.hidl,
            "stack": self.stack,
            "lock_name": self.lock_name,
            "packages": dict(self.packages),
            "inputs": [vars(each) for each in self.inputs],
            **({} if self.hidden is None else {"hidden": [vars(each) for each in self.hidden]}),
            "members": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.members.items())},
        }
        whole = BytesIO()
        with zipfile.ZipFile(whole, "w") as archive:
            text = json.dumps(index, indent=2, ensure_ascii=False) + "\n"
            for name, data in [(_INDEX, text.encode()), *sorted(self.members.items())]:
                entry = zipfile.ZipInfo(name, _TIME)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)
        return whole.getvalue()


@dataclass(frozen=True)
class _Index:
    run: str
    hidl: str
    stack: Name
    lock_name: FileName
    packages: Mapping[str, str]
    inputs: tuple[Input, ...]
    members: Mapping[str, str]
    hidden: tuple[Hidden, ...] | None = None


def read(file: Path) -> Capsule:
    """Read a capsule; ``UsageError`` if there is no such file, ``InvalidInput`` with all that is wrong with it."""
    try:
        if file.stat().st_size > _MOST_OF_ALL:
            raise _invalid(f"larger than {_MOST_OF_ALL >> 20} MiB")
        whole = file.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}", hint="hidl capsule RUN makes one") from error
    try:
        return parse(whole)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error.message}", problems=error.problems, hint=error.hint) from error


def parse(whole: bytes) -> Capsule:
    """Read a capsule from its bytes; ``InvalidInput`` with all that is wrong with it."""
    members = _members(whole)
    index = _index(members.pop(_INDEX, b""))
    missing, unlisted = {*index.members, *_NEEDED} - {*members}, {*members} - {*index.members}
    problems = [Problem(f"{name} is missing", "a whole capsule") for name in sorted(missing)]
    problems += [Problem(f"{name} is not listed in {_INDEX}", "a whole capsule") for name in sorted(unlisted)]
    problems += [
        Problem(f"{name} has changed since the capsule was made", f"SHA-256 {index.members[name]}")
        for name, data in members.items()
        if name in index.members and hashlib.sha256(data).hexdigest() != index.members[name]
    ]
    if problems:
        raise InvalidInput("not a whole capsule", problems=problems, hint="copy it again, or make a new one")
    return Capsule(
        index.run,
        index.hidl,
        index.stack,
        index.lock_name,
        index.packages,
        index.inputs,
        members,
        hashlib.sha256(whole).hexdigest(),
        index.hidden,
    )


def _members(whole: bytes) -> dict[str, bytes]:
    """Return the archive's members; no more is unpacked than a capsule may hold, whatever the archive says."""
    members: dict[str, bytes] = {}
    left = _MOST_OF_ALL
    try:
        with zipfile.ZipFile(BytesIO(whole)) as archive:
            for entry in archive.infolist():
                if entry.filename not in _KNOWN and entry.filename != _INDEX:
                    raise _invalid(f"unknown member {entry.filename[:80]!r}")
                if entry.filename in members:
                    raise _invalid(f"two members {entry.filename}")
                if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or entry.flag_bits & 1:
                    raise _invalid(f"member {entry.filename} is encrypted, or compressed by an unknown method")
                with archive.open(entry) as member:
                    data = member.read(min(_MOST, left) + 1)
                left -= len(data)
                if len(data) > _MOST or left < 0:
                    raise _invalid(f"member {entry.filename} is too large")
                members[entry.filename] = data
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, ValueError, RuntimeError) as error:
        raise _invalid(f"not a capsule: {error}") from error
    return members


def _index(data: bytes) -> _Index:
    try:
        document = json.loads(data.decode())
        if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
            raise _invalid(f"{_INDEX} is not a document of schema {SCHEMA}")
        return TypeAdapter(_Index).validate_python(document)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise _invalid(f"{_INDEX} is not JSON") from error
    except ValidationError as error:
        problems = [Problem(each["msg"], "see hidl.capsule/1", path=each["loc"]) for each in error.errors()]
        raise InvalidInput(
            f"{_INDEX} is invalid", problems=problems, hint="make a new one: hidl capsule RUN"
        ) from error


def _invalid(message: str) -> InvalidInput:
    return InvalidInput(message, hint="hidl capsule RUN makes one")
