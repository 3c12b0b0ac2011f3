"""The known causes as rules over a text, for those who list or explain all rules."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.seen.diagnosis import Diagnosis, diagnoses
from hidl_workloads.doctor.finding import Rules, Seen

RULES: Rules[str] = Rules()


def _register(diagnosis: Diagnosis) -> None:
    @RULES.rule(diagnosis.id, diagnosis.title, severity=diagnosis.severity, why=diagnosis.why)
    def shows(text: str) -> Iterator[Seen]:
        match = diagnosis.first_in(text)
        if match is not None:
            finding = diagnosis.finding(match)
            yield Seen(finding.seen, finding.mend, finding.where)


for _diagnosis in diagnoses():
    _register(_diagnosis)
