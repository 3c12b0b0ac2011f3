"""``hidl validate``: run a site's ReFrame checks, now or every night."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hidl_cli.commands.arguments import TIME, JsonOption, NoCheckOption, limit_in_seconds, with_options
from hidl_cli.commands.render import emit_json, say, show_table, stop_at_errors, write
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.plan.options import RunOptions, absolute
from hidl_cli.quoting import sh_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hidl_cli.validate.reframe import ListedCase
    from hidl_cli.validate.session import Case, Validation

NIGHTLY = "nightly"
_PROGRESS = re.compile(r"^\[\s+(RUN|OK|FAIL|SKIP|ABORT|XFAIL|XPASS|HOLD)\s+\] (.*)$")


@with_options(RunOptions, only=("site", "hosts", "hostfile", "account", "qos", "reservation", "device", "prefix"))
def validate(
    *,
    options: RunOptions,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            "--tag", "-t", metavar="TAG", help="Run checks with this tag: smoke, nightly or scale (default: nightly)."
        ),
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", "-c", metavar="NAME", help="Run this check; repeatable.")
    ] = None,
    partition: Annotated[
        list[str] | None, typer.Option("--partition", "-p", help="Partition (default: the site's); repeatable.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar=TIME, help="Time limit of each job; 10 means ten minutes.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option("--jobs", "-j", min=1, help="Concurrent jobs (default: 8, or 1 if they share this machine)."),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print ReFrame's configuration and the command without running it.")
    ] = False,
    no_check: NoCheckOption = False,
    install_cron: Annotated[bool, typer.Option("--install-cron", help="Run this validation every night.")] = False,
    uninstall_cron: Annotated[
        bool, typer.Option("--uninstall-cron", help="Remove the nightly validation of this site.")
    ] = False,
    at: Annotated[str, typer.Option("--at", metavar="HH:MM", help="Start time of the nightly validation.")] = "02:00",
    cron_with: Annotated[
        str | None, typer.Option("--cron-with", help="crontab, scrontab or systemd (default: the first one available).")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the site's ReFrame checks and report their verdicts."""
    from hidl_cli.validate import session
    from hidl_cli.validate.bridge import CheckLocation
    from hidl_cli.validate.session import worst_exit_code

    named = options.named_hosts
    tags = tag or ([] if check else [NIGHTLY])
    place = CheckLocation(
        site=options.site,
        account=options.account,
        qos=options.qos,
        reservation=options.reservation,
        time_limit=limit_in_seconds(time),
        prefix=absolute(options.prefix),
        device=options.device,
        hosts=named.expression if named else None,
    )
    asked = session.ValidationRequest(place, tuple(partition or ()), tuple(tags), tuple(check or ()), jobs)
    if install_cron and uninstall_cron:
        raise UsageError("--install-cron and --uninstall-cron cannot be combined")
    if install_cron or uninstall_cron:
        further = [*([f"--junit={junit.absolute()}"] if junit else []), *(["--no-check"] if no_check else [])]
        further += ["--json"] if json else []
        _cron(session.prepare(asked), install=install_cron, at=at, kind=cron_with, further=further, dry_run=dry_run)
        return
    validation = session.prepare(asked)
    if dry_run:
        _show_plan(validation, json=json)
    if not no_check:
        stop_at_errors(session.examine(validation), hypothetical=dry_run)
    if dry_run:
        return
    with session.alone(validation):
        listed, left_out = session.begin(validation)
        _announce(validation, listed, left_out)
        cases = session.run(validation, listed, _tell)
    if junit:
        from hidl_cli.validate.session import write_junit

        write_junit(junit, cases, name=f"hidl validate {validation.site.name}")
    code = worst_exit_code(cases)
    if json:
        document = session.document(validation, cases, left_out)
        emit_json(document.pop("schema"), **document, exit_code=int(code))
    else:
        _show(cases)
        say(_next(cases, validation))
    if code:
        raise typer.Exit(code)


def _announce(validation: Validation, listed: Sequence[ListedCase], left_out: Sequence[ListedCase]) -> None:
    from hidl_cli.validate.session import reasons_left_out

    say(f"validation {validation.id}: {len(listed)} case(s) on {validation.site.name}, in {validation.directory}")
    for check, reason in reasons_left_out(validation, left_out).items():
        say(f"left out: {check}: {reason}", style="dim")


def _tell(line: str) -> None:

    match = _PROGRESS.match(line)
    if match:
        say(f"{match[1].lower():>5} {match[2]}")


def _show(cases: Sequence[Case]) -> None:

    show_table(
        [
            {
                "verdict": case.verdict,
                "case": case.name,
                "run": case.run,
                "seconds": f"{case.seconds:.1f}",
                "reason": case.reason.partition("\n")[0],
            }
            for case in cases
        ],
        whole=("verdict",),
    )
    for case in cases:
        if "\n" in case.reason:
            say(f"{case.name}: {case.reason}")


def _next(cases: Sequence[Case], validation: Validation) -> str:
    """Return a text with the number of passed cases and the next step."""
    passed = sum(case.verdict == "pass" for case in cases)
    judged = [case for case in cases if case.verdict != "skipped"]
    bad = sorted((case for case in judged if case.exit_code), key=lambda case: case.exit_code)
    text = f"{passed} of {len(judged)} case(s) passed"
    if not bad:
        return f"{text}; see the runs with hidl results list, and the site's history with hidl report"
    fallback = f"hidl results show {bad[0].run}" if bad[0].run else f"see ReFrame's output in {validation.log}"
    hint = bad[0].hint or fallback
    return f"{text}\nnext, for {bad[0].name}: {hint}"


def _show_plan(validation: Validation, *, json: bool) -> None:

    command = validation.command
    if json:
        emit_json(
            "hidl.validation-plan/1",
            site=validation.site.name,
            directory=str(validation.directory),
            configuration=validation.configuration,
            command=command,
        )
        return
    write(f"# {validation.settings}\n{validation.settings_text()}\n# the command\n{sh_line(command)}\n")


def _cron(
    validation: Validation, *, install: bool, at: str, kind: str | None, further: Sequence[str], dry_run: bool
) -> None:
    from hidl_cli.validate import cron

    nightly = cron.Nightly.of(validation.site.name, validation.request, at, further)
    table = cron.choose(kind, hypothetical=dry_run)
    if dry_run:
        write(
            table.text(nightly)
            if install
            else f"# without the nightly validation of {nightly.site}\n{table.without(nightly)}"
        )
        return
    if install:
        table.install(nightly)
        say(f"{table.name} starts the nightly validation of {nightly.site} at {at}; its output goes to {nightly.log}")
        words = ("hidl", "validate", "--uninstall-cron", f"--cron-with={table.name}", *nightly.selection)
        say(f"to remove it: {sh_line(words)}")
        return
    if not table.uninstall(nightly):
        raise MissingPrecondition(
            f"nightly validation {nightly.key} not found in {table.name}",
            hint="use the options with which the validation was installed; "
            f"{table.name} contains: {', '.join(table.keys()) or 'none'}",
        )
    say(f"removed the nightly validation {nightly.key}")
