"""The command line as a whole: its commands, and the rendering of errors."""

from __future__ import annotations

import errno
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hidl_cli import __version__, paths
from hidl_cli.commands.own_program import WithOwnProgram
from hidl_cli.commands.render import show_error, show_interrupt
from hidl_cli.errors import ExitCode, HidlError, MissingPrecondition, Terminated, describe_system_error
from hidl_cli.quoting import sh_line
from hidl_cli.redaction import shown

#: Maps each command to its ``module:attribute``, which is a function or a typer app with subcommands.
COMMANDS = {
    "install": "install:install",
    "uninstall": "install:uninstall",
    "prune": "runs:prune",
    "run": "run:run",
    "shell": "run:shell",
    "validate": "validate:validate",
    "rehearse": "twin:rehearse",
    "status": "runs:status",
    "logs": "runs:logs",
    "cancel": "runs:cancel",
    "resume": "runs:resume",
    "report": "results:report",
    "capsule": "capsule:capsule",
    "replay": "capsule:replay",
    "bisect": "capsule:bisect",
    "results": "results:app",
    "stack": "stack:app",
    "workload": "workload:app",
    "data": "workload:data_app",
    "site": "site:app",
    "cluster": "twin:app",
    "tuning": "tuning:app",
    "doctor": "doctor:app",
    "config": "doctor:config_app",
}


def command_line(command: str | None = None) -> typer.Typer:
    """Return the command line with all commands, or with only ``command`` if this is the name of a command.

    typer inspects the signature of every command, which takes longer than most commands themselves.
    """
    app = typer.Typer(
        cls=_Hidl,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Install, tune, launch and validate deep-learning and data-science stacks over MPI.",
    )
    app.callback()(_options)
    for name in [command] if command in COMMANDS else COMMANDS:
        module, _, attribute = COMMANDS[name].partition(":")
        found = getattr(import_module(f"hidl_cli.commands.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name, cls=WithOwnProgram if name == "run" else None)(found)
    return app


class _Hidl(TyperGroup):
    """The top-level command, which converts every error into a message and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        # SIGTERM and SIGHUP are treated like Ctrl-C, so that child processes end and runs record their state.
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # ignored under nohup
                signal.signal(number, _interrupt)
        try:
            returned = super().invoke(ctx)
            sys.stdout.flush()
            return returned
        except HidlError as error:
            show_error(error)
            raise typer.Exit(error.exit_code) from None
        except ModuleNotFoundError as error:
            if error.name != "hidl_twin":
                raise
            missing = MissingPrecondition(
                "this command requires the extra hidl[twin], which is not installed",
                hint=sh_line([sys.executable, "-m", "pip", "install", str(paths.shipped() / "libs" / "hidl_twin")]),
            )
            show_error(missing)
            raise typer.Exit(missing.exit_code) from None
        except (OSError, MemoryError, RuntimeError) as error:
            if isinstance(error, OSError):
                _drop_output()
            if (named := describe_system_error(error)) is None:
                raise
            show_error(named)
            raise typer.Exit(named.exit_code) from None
        except KeyboardInterrupt:
            show_interrupt()
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as error:
            if hasattr(error, "format_message") and hasattr(error, "message"):  # typer's messages quote arguments
                error.message = shown(error.message)
            raise


def _drop_output() -> None:
    """Discard the remaining output if the disk is full; Python would try to write it again on exit."""
    try:
        sys.stdout.flush()
    except OSError as error:
        if error.errno == errno.ENOSPC:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _interrupt(*_: object) -> None:
    raise Terminated


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hidl {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, help="Show full launch lines; -vv also shows every process started."
        ),
    ] = 0,
) -> None:
    if verbose or os.environ.get("HIDL_LOG"):
        from hidl_cli.commands.render import open_log, report_more

        open_log()
        report_more(verbose)
