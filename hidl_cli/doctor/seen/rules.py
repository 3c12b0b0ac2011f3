"""The known causes as rules over a text, for those who list or explain all rules."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.doctor.seen.diagnosis import Diagnosis, diagnoses
from hidl_workloads.doctor.finding import Rules, Seen

RULES: Rules[str] = Rules()


def _register(diagnosis: Diagnosis) -> None:
    """Make the diagnosis a rule; what it is told by stands in its documentation, as in that of written rules."""

    def shows(text: str) -> Iterator[Seen]:
        match = diagnosis.first_in(text)
        if match is not None:
            finding = diagnosis.finding(match)
            yield Seen(finding.seen, finding.mend, finding.where)

    example = next(shows(diagnosis.examples[0].text))
    shows.__doc__ = f"By what was printed, such as: {example.seen}"
    RULES.rule(diagnosis.id, diagnosis.title, severity=diagnosis.severity, why=diagnosis.why)(shows)


for _diagnosis in diagnoses():
    _register(_diagnosis)
