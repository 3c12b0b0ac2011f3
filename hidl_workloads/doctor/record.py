"""``findings.json`` (``hidl.findings/1``): the findings of a run, from its job and later, without duplicates."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hidl_workloads.doctor.finding import Finding, worst_first

SCHEMA = "hidl.findings/1"


def read(file: Path) -> list[Finding]:
    """Read findings sorted by severity; empty if the file is missing or unreadable."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] == SCHEMA:
            return worst_first(Finding.from_json(each) for each in document["findings"])
    return []


def add(file: Path, findings: Iterable[Finding]) -> list[Finding]:
    """Add new findings to a file, and return them. Concurrent steps of a run may write to the same file.

    Raises:
        OSError: If the file cannot be written.
    """
    with _locked(file):
        known = read(file)
        new = [finding for finding in dict.fromkeys(findings) if finding not in known]
        if new:
            document = {"schema": SCHEMA, "findings": [each.to_json() for each in worst_first([*known, *new])]}
            temporary = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
            temporary.write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
            temporary.replace(file)
    return new


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Lock a file against other writers, on file systems that support locks."""
    with file.parent.joinpath(f".{file.name}.lock").open("a") as lock:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield
