"""``findings.json`` (``hidl.findings/1``): what was found of a run, inside its job and afterwards, each thing once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hidl_workloads.doctor.finding import Finding, worst_first

SCHEMA = "hidl.findings/1"


def read(file: Path) -> list[Finding]:
    """The findings in ``file``, the worst first; none where it is not there, or cannot be read."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        document = json.loads(file.read_text(encoding="utf-8"))
        if document["schema"] == SCHEMA:
            return worst_first(Finding.from_json(each) for each in document["findings"])
    return []


def add(file: Path, findings: Iterable[Finding]) -> list[Finding]:
    """Add to ``file`` what it does not hold yet, and return that. Raises ``OSError`` where it cannot be written.

    Several steps of a run, and copies of one step at once, write into the same file.
    """
    with _alone(file):
        known = read(file)
        new = [finding for finding in dict.fromkeys(findings) if finding not in known]
        if new:
            document = {"schema": SCHEMA, "findings": [each.to_json() for each in worst_first([*known, *new])]}
            beside = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
            beside.write_text(json.dumps(document, indent=2) + "\n", encoding="ascii")
            beside.replace(file)
    return new


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """Hold others off meanwhile, on file systems that can."""
    with file.parent.joinpath(f".{file.name}.lock").open("a") as lock:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.lockf(lock, fcntl.LOCK_EX)
        yield
