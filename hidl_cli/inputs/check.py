"""A document against its model: every fault at once, each at its place."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ValidationError

from hidl_cli.errors import Problem
from hidl_cli.inputs.faults import Check, Fault
from hidl_cli.inputs.tree import YamlNode, place, plain
from hidl_cli.inputs.wording import fault_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

M = TypeVar("M", bound=BaseModel)

MAX_FINDINGS = 100
_BRANCHES = 4


def check(
    root: YamlNode, model: type[M], checks: Iterable[Check], *, complete: bool = True
) -> tuple[M | None, tuple[Problem, ...]]:
    """The document as a model (None where anything is wrong), and what is wrong with it.

    Without ``complete``, a part of the document could not be read, and missing keys are not reported. Of more than
    100 problems, the last only says that there are more.
    """
    data = plain(root)
    checked = None
    details: list[ErrorDetails] = []
    try:
        checked = model.model_validate(data)
    except ValidationError as error:
        details = error.errors(include_url=False)
    faults = chain(
        (fault_of(model, detail) for detail in details if complete or detail["type"] != "missing"),
        (fault for rule in checks for fault in rule(data)),
    )
    # a fault inside of a union comes once per branch; wording hundreds of thousands would take long
    unique = list(dict.fromkeys(islice(faults, _BRANCHES * (MAX_FINDINGS + 1))))
    problems = [_at_its_place(root, fault) for fault in unique[:MAX_FINDINGS]]
    if len(unique) > MAX_FINDINGS:
        problems.append(
            Problem(f"more than {MAX_FINDINGS} errors; the rest are not shown", "a file that matches its schema")
        )
    return (None if problems else checked), tuple(problems)


def _at_its_place(root: YamlNode, fault: Fault) -> Problem:
    mark = place(root, fault.path, on_key=fault.on_key)
    return Problem(fault.message, fault.expected, fault.path, mark, fault.suggestion)
