"""The command line as a whole: which commands there are, and how an error is told."""

from __future__ import annotations

import signal
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hidl_cli import __version__
from hidl_cli.commands import (
    cluster,
    config,
    doctor,
    install,
    logs,
    regression,
    report,
    results,
    run,
    site,
    stack,
    status,
    tuning,
    uninstall,
    validate,
    workload,
)
from hidl_cli.commands.render import show_error, show_interrupt
from hidl_cli.errors import ExitCode, HidlError, HungUp


class _Hidl(TyperGroup):
    """The top command: turns an error of any command into its message and its exit code."""

    def invoke(self, ctx: Any) -> Any:
        # Being told to end is an interrupt too: children are ended, and what was begun is marked.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.signal(signal.SIGHUP, _hang_up)
        try:
            return super().invoke(ctx)
        except HidlError as error:
            show_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            show_interrupt()
            raise typer.Exit(ExitCode.INTERRUPTED) from None


def _hang_up(*_: object) -> None:
    raise HungUp


app = typer.Typer(
    cls=_Hidl,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Install, tune, launch and validate deep-learning and data-science stacks over MPI.",
)
app.command()(install.install)
app.command()(uninstall.uninstall)
app.command()(run.run)
app.command()(validate.validate)
app.command()(status.status)
app.command()(logs.logs)
app.command()(status.cancel)
app.command()(status.resume)
app.command()(report.report)
results.app.command()(regression.compare)
results.app.command()(regression.history)
app.add_typer(results.app, name="results")
app.add_typer(stack.app, name="stack")
app.add_typer(workload.app, name="workload")
app.add_typer(site.app, name="site")
app.add_typer(cluster.app, name="cluster")
app.add_typer(tuning.app, name="tuning")
app.add_typer(doctor.app, name="doctor")
app.add_typer(config.app, name="config")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"hidl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    pass
