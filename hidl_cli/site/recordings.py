"""The site of a machine that is elsewhere: recorded by ``hidl doctor --collect``, or in outputs saved by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hidl_cli.errors import InvalidInput
from hidl_cli.site.outputs import foreign, survey_folder
from hidl_cli.site.probes.survey import DESCRIPTION, Found, load_host, survey_recorded


def survey_from(directory: Path, *, alone: bool = False) -> tuple[Found, Sequence[str]]:
    """What is found in ``directory``, and the commands that failed there; ``alone``: but for a scheduler.

    Raises ``UsageError`` where it holds nothing, and ``InvalidInput`` for what cannot be read, or tells of no machine.
    """
    if not (directory / DESCRIPTION).is_file():
        return survey_folder(directory, alone=alone), ()
    host = load_host(directory)
    if problems := foreign(host):
        raise InvalidInput(f"{directory} holds answers to other questions", problems=problems, hint="record it again")
    return survey_recorded(host, alone=alone), host.failures
