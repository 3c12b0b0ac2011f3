"""From what was printed to what is wrong."""

from __future__ import annotations

from hidl_cli.doctor.seen.diagnosis import diagnoses
from hidl_workloads.doctor.finding import SEVERITIES, Finding

MOST = 256 * 1024  # characters that are looked at: of longer texts the last ones


def causes(text: str) -> list[Finding]:
    """The known causes that ``text`` shows, each once: errors before warnings, and what came first before the rest.

    What is the mere consequence of another cause that is seen is left out.
    """
    text = text[-MOST:]
    matches = ((diagnosis, diagnosis.first_in(text)) for diagnosis in diagnoses())
    seen = {diagnosis.id: (diagnosis, match) for diagnosis, match in matches if match is not None}
    told = [(diagnosis, match) for diagnosis, match in seen.values() if not seen.keys() & set(diagnosis.unless)]
    told.sort(key=lambda one: (SEVERITIES.index(one[0].severity), one[1].start()))
    return [diagnosis.finding(match) for diagnosis, match in told]
