"""Known errors in a run's output, as rules: for ``hidl doctor rules`` and ``explain``."""

from __future__ import annotations

from collections.abc import Iterator

from hidl_cli.diagnoses.diagnosis import Diagnosis, load_diagnoses
from hidl_workloads.doctor.finding import Evidence, Rules

RULES: Rules[str] = Rules()


def _register(diagnosis: Diagnosis) -> None:
    """Make the diagnosis a rule, with its first example as its documentation."""

    def matches(text: str) -> Iterator[Evidence]:
        match = diagnosis.first_match(text)
        if match is not None:
            finding = diagnosis.finding(match)
            yield Evidence(finding.seen, finding.fix, finding.where)

    example = next(matches(diagnosis.examples[0].text))
    matches.__doc__ = f"From the output of a job, for example: {example.seen}"
    RULES.rule(diagnosis.id, diagnosis.title, severity=diagnosis.severity, why=diagnosis.why)(matches)


for _diagnosis in load_diagnoses():
    _register(_diagnosis)
