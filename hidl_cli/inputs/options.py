"""Options that are declared once, as dataclass fields with their command-line name, help text and limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

_KEY = "hidl.option"


@dataclass(frozen=True)
class CommandLineOption:
    """A field in an options dataclass, as a command-line option.

    Attributes:
        names: Names such as ``--account`` and ``-A``. An option that is on by default has a single name, ``--no-...``.
        help: Help text.
        panel: Group that contains the option in the help.
        metavar: Placeholder for the value in the help.
        minimum: Smallest number.
        maximum: Largest number.
        completion: Name of the function ``complete_<name>`` that completes the value.
        repeatable: True if the option may be given several times. Its field is then a list.
    """

    names: tuple[str, ...]
    help: str
    panel: str
    metavar: str | None = None
    minimum: float | None = None
    maximum: float | None = None
    completion: str | None = None
    repeatable: bool = False


def option(
    default: Any,
    *names: str,
    help: str,
    panel: str,
    metavar: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    completion: str | None = None,
    repeatable: bool = False,
) -> Any:
    """Declare a field that is also a command-line option; see ``CommandLineOption``."""
    described = CommandLineOption(names, help, panel, metavar, minimum, maximum, completion, repeatable)
    return field(default=default, metadata={_KEY: described})


def command_line_options(options: type) -> Mapping[str, CommandLineOption]:
    """Return a dataclass's options by field name."""
    return {each.name: each.metadata[_KEY] for each in fields(options) if _KEY in each.metadata}
