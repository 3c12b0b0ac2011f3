"""Verdicts on the cases in a ReFrame session, and the session's exit code."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from hidl_cli.documents import write_text
from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.record import Run, State
from hidl_cli.redaction import shown
from hidl_cli.runs.follow import Watch
from hidl_cli.validate.reframe import ListedCase

CaseVerdict = Literal["pass", "fail", "inconclusive", "skipped"]
_Verdict = tuple[CaseVerdict, str, str | None, ExitCode]

_NOT_JUDGED = ("skip", "xfail")
_SUBMISSION = ("setup", "compile", "run")


@dataclass(frozen=True)
class Case:
    """A case in a ReFrame session, with its verdict.

    Attributes:
        name: Name of the check, including its parameters.
        place: System, partition and environment in which the case ran.
        exit_code: Exit code that ``hidl run`` would have returned.
        run: Name of the run, or None if the case has no hidl run.
        directory: The run's directory.
        figures: Value and unit of each performance variable that ReFrame logged.
    """

    name: str
    place: str
    verdict: CaseVerdict
    reason: str
    hint: str | None
    exit_code: int
    run: str | None
    directory: str | None
    seconds: float
    tags: tuple[str, ...] = ()
    figures: Mapping[str, tuple[float, str]] = field(default_factory=dict)

    @property
    def check(self) -> str:
        """The name of the check without its parameters."""
        return self.name.split()[0]


def judge_cases(entries: Sequence[Mapping[str, Any]]) -> list[Case]:
    """Return the cases in a ReFrame report with their verdicts, and record the end of runs that did not record it."""
    return [_case(entry) for entry in entries]


def worst_exit_code(cases: Sequence[Case]) -> ExitCode:
    """Return the session's exit code: the lowest nonzero exit code of all cases."""
    return ExitCode(min((case.exit_code for case in cases if case.exit_code), default=ExitCode.OK))


def require_complete(cases: Sequence[Case], listed: Sequence[ListedCase]) -> None:
    """Check that ReFrame has run all cases that it listed.

    ReFrame itself reports success for 0 of 0 cases, and omits cases that were never started.

    Raises:
        HidlError: If a case was not run, or all cases were skipped.
    """
    ran = [case for case in cases if case.verdict != "skipped"]
    if len(cases) != len(listed) or not ran:
        names = {case.name for case in cases}
        missing = ", ".join(each.name for each in listed if each.name not in names)
        raise HidlError(
            f"ReFrame ran {len(ran)} of {len(listed)} case(s)" + (f"; not run: {missing}" if missing else ""),
            hint="see its output in reframe.out in the validation's directory",
        )


def to_json(case: Case) -> dict[str, Any]:
    """Return a case as a JSON-serializable dictionary."""
    return {**asdict(case), "tags": list(case.tags), "figures": {k: list(v) for k, v in case.figures.items()}}


def _case(entry: Mapping[str, Any]) -> Case:
    verdict, reason, hint, code = _verdict(entry)
    return Case(
        name=str(entry.get("display_name") or entry["name"]),
        place=f"{entry.get('system', '')}:{entry['partition']}+{entry['environ']}",
        verdict=verdict,
        reason=reason,
        hint=hint,
        exit_code=int(code),
        run=entry.get("hidl_run") or None,
        directory=entry.get("hidl_directory") or None,
        seconds=float(entry.get("time_total") or 0.0),
        tags=tuple(sorted(entry.get("tags") or ())),
        figures=_figures(entry),
    )


def _verdict(entry: Mapping[str, Any]) -> _Verdict:
    result, verdict = str(entry["result"]), entry.get("hidl_verdict") or ""
    reason, hint = str(entry.get("hidl_reason") or ""), entry.get("hidl_hint") or None
    if result in _NOT_JUDGED:
        return "skipped", str(entry.get("fail_reason") or result), None, ExitCode.OK
    if result == "pass":
        if verdict in ("", "pass"):  # user-written checks may have no hidl verdict
            return "pass", reason, None, ExitCode.OK
        return _not_passed(reason, hint, entry)
    if verdict in ("fail", "inconclusive"):
        return _not_passed(reason, hint, entry)
    code, reason = _failure(entry)
    run = entry.get("hidl_run")
    return "fail", reason, hint or (f"hidl logs {run}" if run else None), code


def _not_passed(reason: str, hint: str | None, entry: Mapping[str, Any]) -> _Verdict:
    code = ExitCode(int(entry.get("hidl_exit") or ExitCode.BELOW_TARGET))
    verdict: CaseVerdict = "inconclusive" if code is ExitCode.INCONCLUSIVE else "fail"
    return verdict, reason, hint, code


def _failure(entry: Mapping[str, Any]) -> tuple[ExitCode, str]:
    """Return the exit code and reason for a failure detected by ReFrame: a rejected or timed-out job, or an error."""
    phase, reason = str(entry.get("fail_phase") or ""), " ".join(str(entry.get("fail_reason") or "").split())
    text = f"{entry['result']} in phase {phase}: {reason}" if phase else f"ReFrame: {entry['result']}"
    timed_out = "timed out" in reason
    rejected = phase in _SUBMISSION and not timed_out
    if entry.get("hidl_directory"):
        state = State.REFUSED if rejected else None
        _end(Run(Path(entry["hidl_directory"])), state, timed_out=timed_out, reason=reason)
    if timed_out:
        return ExitCode.JOB_FAILED, f"the job reached its time limit ({reason})"
    if rejected:
        return (ExitCode.SUBMIT_REFUSED if phase == "run" else ExitCode.UNEXPECTED), text
    if phase == "performance":
        return ExitCode.BELOW_TARGET, text
    return ExitCode.JOB_FAILED, text


def _end(run: Run, state: State | None, *, timed_out: bool, reason: str) -> None:
    """Record the end of a run that could not record its own end."""
    if not run.status().state.is_final and state is None and not timed_out:
        (status,) = Watch([run]).poll()
        state = None if status.state.is_final else State.LOST
    if timed_out:
        state = State.TIMEOUT
    if state is not None and run.status().state is not State.COMPLETED:
        run.end_as(state, reason=reason)


def _figures(entry: Mapping[str, Any]) -> dict[str, tuple[float, str]]:
    """Return values and units by name from ReFrame's ``perfvalues``, whose keys are ``system:partition:name``."""
    found = {}
    for key, values in (entry.get("perfvalues") or {}).items():
        value, unit = values[0], values[4]
        if isinstance(value, (int, float)) and math.isfinite(value):
            found[str(key).rpartition(":")[2]] = (float(value), str(unit))
    return found


# JUnit XML for continuous integration, in which inconclusive cases are failures.


def write(path: Path, cases: Sequence[Case], *, name: str) -> None:
    """Write the cases as a JUnit test suite. Failures contain the verdict, reason, hint and run directory."""
    failed = [case for case in cases if case.verdict in ("fail", "inconclusive")]
    skipped = [case for case in cases if case.verdict == "skipped"]
    counts = {"tests": len(cases), "failures": len(failed), "errors": 0, "skipped": len(skipped)}
    suite = ET.Element(
        "testsuite",
        {"name": name, "time": f"{sum(case.seconds for case in cases):.3f}", **{k: str(v) for k, v in counts.items()}},
    )
    for case in cases:
        element = ET.SubElement(
            suite, "testcase", {"classname": case.place, "name": case.name, "time": f"{case.seconds:.3f}"}
        )
        if case.verdict in ("fail", "inconclusive"):
            failure = ET.SubElement(element, "failure", {"type": case.verdict, "message": _text(case.reason)})
            failure.text = _text("\n".join(part for part in (case.reason, case.hint, case.directory) if part))
        elif case.verdict == "skipped":
            ET.SubElement(element, "skipped", {"message": _text(case.reason)})
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    write_text(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def _text(text: str) -> str:
    """Remove secrets, and replace control characters that XML 1.0 cannot represent."""
    return "".join(c if c in "\n\t" or c.isprintable() else "?" for c in shown(text))
