"""A document against its model: every fault at once, each at its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from hidl_cli.inputs.faults import Check, Fault
from hidl_cli.inputs.findings import Finding
from hidl_cli.inputs.tree import Node, place, plain
from hidl_cli.inputs.wording import in_words

M = TypeVar("M", bound=BaseModel)

MAX_FINDINGS = 100


def check(
    root: Node, model: type[M], checks: Iterable[Check], *, complete: bool = True
) -> tuple[M | None, tuple[Finding, ...]]:
    """The document as a model (None where anything is wrong), and what is wrong with it.

    Without ``complete``, a part of the document could not be read, and missing keys are not reported. Of more than
    100 findings, the last only says how many more there are.
    """
    data = plain(root)
    checked = None
    faults: list[Fault] = []
    try:
        checked = model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
        faults = [in_words(model, detail) for detail in details if complete or detail["type"] != "missing"]
    faults += [fault for rule in checks for fault in rule(data)]
    faults = list(dict.fromkeys(faults))
    findings = [_at_its_place(root, fault) for fault in faults[:MAX_FINDINGS]]
    if len(faults) > MAX_FINDINGS:
        findings.append(Finding(f"{len(faults) - MAX_FINDINGS:,} further faults are not shown", "a file of its schema"))
    return (None if faults else checked), tuple(findings)


def _at_its_place(root: Node, fault: Fault) -> Finding:
    mark = place(root, fault.path, on_key=fault.on_key)
    return Finding(fault.message, fault.expected, fault.path, mark, fault.suggestion)
