"""Options shared by several commands, their completion, and the parsing of times."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from hidl_cli.commands import completion
from hidl_cli.errors import UsageError
from hidl_cli.launch.options import AllocationOptions, CommandLineOption, InstallOptions, command_line_options
from hidl_cli.plan.options import RunOptions

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from hidl_cli.inputs.overlay import KindName
    from hidl_cli.site.schema import ProviderName


def complete_sites(incomplete: str) -> list[str]:
    """Complete site names."""
    return _names("site", incomplete)


def complete_stacks(incomplete: str) -> list[str]:
    """Complete stack names."""
    return _names("stack", incomplete)


def complete_devices(incomplete: str) -> list[str]:
    """Complete devices."""
    return [name for name in ("cpu", "gpu") if name.startswith(incomplete)]


def complete_workloads(incomplete: str) -> list[str]:
    """Complete workload names."""
    return _names("workload", incomplete)


def complete_runs(incomplete: str) -> list[str]:
    """Complete run ids."""
    from hidl_cli.record import all_runs

    return [run.id for run in all_runs() if run.id.startswith(incomplete)]


def complete_runs_and_workloads(incomplete: str) -> list[str]:
    """Complete the arguments of ``hidl results compare``."""
    return [*complete_runs(incomplete), *complete_workloads(incomplete)]


def provider_name(word: str | None) -> ProviderName | None:
    """Return ``word`` if it is a provider, and raise ``UsageError`` otherwise."""
    from hidl_cli.api.software import provider_name as checked

    return checked(word)


def directory(word: str | None) -> Path | None:
    """Return ``word`` as an absolute path; None stays None."""
    from pathlib import Path

    return Path(word).expanduser().absolute() if word else None


def _names(kind: KindName, incomplete: str) -> list[str]:
    from hidl_cli.inputs.overlay import list_all

    return [entry.name for entry in list_all(kind) if entry.name.startswith(incomplete)]


def describe(options: type, name: str, help: str | None = None, *, in_panel: bool = False) -> Any:
    """Return typer's declaration of an option, which is defined by the field ``name`` of the dataclass ``options``."""
    option = command_line_options(options)[name]
    complete = None
    if option.completion is not None:
        function = f"complete_{option.completion}"
        complete = globals().get(function) or getattr(completion, function)
    return typer.Option(
        *option.names,
        metavar=option.metavar,
        min=option.minimum,
        max=option.maximum,
        help=help or option.help,
        autocompletion=complete,
        rich_help_panel=f"{option.panel} options" if in_panel else None,
    )


SiteOption = Annotated[str | None, describe(AllocationOptions, "site")]
PrefixOption = Annotated[str | None, describe(InstallOptions, "prefix")]
ProviderOption = Annotated[str | None, describe(InstallOptions, "provider")]
SpackOption = Annotated[str | None, describe(InstallOptions, "spack")]
SpecOption = Annotated[list[str] | None, describe(InstallOptions, "specs")]
StackDeviceOption = Annotated[str | None, describe(InstallOptions, "device")]
MirrorOption = Annotated[str | None, describe(InstallOptions, "mirror")]
OfflineOption = Annotated[bool, describe(InstallOptions, "offline")]


def _report_more(level: int) -> int:
    from hidl_cli.commands.render import report_more

    if level:
        report_more(level)
    return level


VerboseOption = Annotated[
    int,
    typer.Option(
        "--verbose",
        "-v",
        count=True,
        callback=_report_more,
        help="Show full launch lines; -vv also shows every process started.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON document.")]
NoCheckOption = Annotated[bool, describe(RunOptions, "check")]
#: Metavar for ``--time``.
TIME = "MINUTES|HH:MM:SS"
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN]",
        help="Run id, or its start or end (default: the last run).",
        autocompletion=complete_runs,
    ),
]


def moment(text: str) -> datetime:
    """Parse a date or time (ISO 8601, local unless it has a time zone) or an age such as ``90m``, ``12h`` or ``30d``.

    Raises ``UsageError`` if ``text`` is neither.
    """
    from datetime import datetime, timedelta, timezone

    units = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    try:
        if text[-1:] in units and text[:-1].isdecimal():
            return datetime.now(timezone.utc) - timedelta(**{units[text[-1]]: int(text[:-1])})
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone()
    except (ValueError, OverflowError):
        raise UsageError(
            f"invalid time {text!r}", hint="use a date, a time or an age, such as 2026-01-31, 2026-01-31T18:00 or 30d"
        ) from None


def limit_in_seconds(text: str | None) -> float | None:
    """Convert the value of ``--time`` to seconds (None stays None); raises ``UsageError`` if it is invalid."""
    if text is None:
        return None
    from hidl_cli.launch.options import limit_from

    return limit_from(text)


Options = TypeVar("Options")


def with_options(
    options: type[Options],
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
    help: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that replaces a command's ``options`` parameter with the options of a dataclass.

    Args:
        options: The dataclass, whose fields are declared by ``hidl_cli.launch.options.option``.
        only: Names of the fields to use (default: all).
        without: Names of the fields to leave out.
        help: Help texts that override those of the dataclass, by field name.
    """
    chosen = {
        name: each
        for name, each in command_line_options(options).items()
        if (name in only or not only) and name not in without
    }
    declared = {each.name: each for each in fields(options)}  # type: ignore[arg-type]  # a dataclass

    def parameter(name: str, option: CommandLineOption) -> inspect.Parameter:
        default = declared[name].default
        annotation: Any = Annotated[
            _type_of(str(declared[name].type), option), describe(options, name, (help or {}).get(name), in_panel=True)
        ]
        return inspect.Parameter(
            _parameter_name(name, option),
            inspect.Parameter.KEYWORD_ONLY,
            default=not default if _is_negative(option) else default,
            annotation=annotation,
        )

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @wraps(function)
        def command(**values: Any) -> None:
            given = {name: values.pop(_parameter_name(name, option)) for name, option in chosen.items()}
            given |= {name: not given[name] for name, option in chosen.items() if _is_negative(option)}
            function(options=options(**given), **values)

        own = inspect.signature(function, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for each in own.parameters.values():
            derived = (parameter(name, option) for name, option in chosen.items())
            parameters += derived if each.name == "options" else (each,)
        setattr(command, "__signature__", own.replace(parameters=parameters))  # noqa: B010  as in hidl_cli.api
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _parameter_name(name: str, option: CommandLineOption) -> str:
    return option.names[0].removeprefix("--").replace("-", "_") if _is_negative(option) else name


def _is_negative(option: CommandLineOption) -> bool:
    return option.names[0].startswith("--no-")


def _type_of(declared: str, option: CommandLineOption) -> Any:
    """Return the command-line type of an option: text, unless its field is declared as a number, a flag or a choice."""
    if option.repeatable:
        return list[str] | None
    text = declared.removesuffix(" | None")
    if text.startswith("Literal["):
        return Literal[tuple(word.strip(" \"'") for word in text[len("Literal[") : -1].split(","))] | None
    return {"int": int | None, "float": float | None, "bool": bool}.get(text, str | None)
