"""The page of exit codes, out of ``hidl_cli.errors``."""

from __future__ import annotations

import inspect
import re

from hidl_cli import errors

from .markdown import code, plain, table

_HEAD = """\
# Exit codes

Each code has one meaning in all commands. A message on stderr says what failed, why, and the next step. Where several
runs or cases are judged at once, the gravest decides.

"""
#: What is no error has no class of its own to say it.
_VERDICTS = {
    errors.ExitCode.OK: "all is well",
    errors.ExitCode.BELOW_TARGET: "the verdict is `fail`: below the target, worse than before, or ranks that disagree",
    errors.ExitCode.INCONCLUSIVE: "the verdict is `inconclusive`: too noisy, or too few values to judge",
    errors.ExitCode.INTERRUPTED: "interrupted by the user (Ctrl-C, SIGTERM, or a terminal that was closed)",
}


def pages() -> dict[str, str]:
    """The page."""
    classes = {
        member.exit_code: member
        for _, member in inspect.getmembers(errors, inspect.isclass)
        if issubclass(member, errors.HidlError) and member is not errors.ProcessFailed
    }
    rows = [(str(int(one)), code(one.name), _VERDICTS.get(one) or _meaning(classes[one])) for one in errors.ExitCode]
    return {"reference/exit-codes.md": _HEAD + table(("code", "name", "meaning"), rows)}


def _meaning(error: type[errors.HidlError]) -> str:
    first = (error.__doc__ or "").split(": ``message``")[0].strip().splitlines()[0]
    return plain(re.sub(r"``(.*?)``", r"`\1`", first).rstrip(".;"))
