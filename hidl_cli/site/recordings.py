"""Survey a machine from a recording made there by ``hidl doctor --collect``, or from output that was saved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hidl_cli.errors import InvalidInput
from hidl_cli.site.outputs import foreign, survey_folder
from hidl_cli.site.probes.survey import DESCRIPTION, SurveyResult, load_host, survey_recorded


def survey_from(directory: Path, *, alone: bool = False) -> tuple[SurveyResult, Sequence[str]]:
    """Return the facts found in ``directory``, and the commands that failed on the recorded machine.

    If ``alone`` is set, schedulers are ignored. Raises ``UsageError`` if there is nothing to read, and ``InvalidInput``
    if something cannot be read or does not describe a machine.
    """
    if not (directory / DESCRIPTION).is_file():
        return survey_folder(directory, alone=alone), ()
    host = load_host(directory)
    if problems := foreign(host):
        raise InvalidInput(
            f"{directory} contains output from other commands", problems=problems, hint="record it again"
        )
    return survey_recorded(host, alone=alone), host.failures
