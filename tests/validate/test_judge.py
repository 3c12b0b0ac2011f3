"""From ReFrame's report to verdicts: whatever it calls OK, what hidl found counts."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.errors import ExitCode, HidlError
from hidl_cli.validate.reframe import ListedCase
from hidl_cli.validate.session import judge_cases, require_complete, worst_exit_code

PASSED: dict[str, Any] = {
    "name": "check",
    "display_name": "check %scale=1-node",
    "system": "s",
    "partition": "p",
    "environ": "e",
    "result": "pass",
    "hidl_verdict": "pass",
    "hidl_exit": 0,
    "time_total": 1.5,
    "perfvalues": {"s:p:rate": [2.5, 0, None, None, "1/s", None]},
}


@pytest.mark.parametrize(
    ("changed", "verdict", "code"),
    [
        ({}, "pass", 0),
        ({"hidl_verdict": "inconclusive", "hidl_exit": 11}, "inconclusive", 11),
        ({"result": "fail", "hidl_verdict": "fail", "hidl_exit": 9}, "fail", 9),
        ({"result": "fail", "hidl_verdict": "", "hidl_exit": 1, "fail_phase": "sanity"}, "fail", 8),
        ({"result": "fail", "hidl_verdict": "", "hidl_exit": 1, "fail_phase": "run", "fail_reason": "x"}, "fail", 6),
        ({"result": "fail", "hidl_verdict": "pass", "hidl_exit": 0, "fail_phase": "performance"}, "fail", 10),
        ({"result": "abort", "hidl_verdict": ""}, "fail", 8),
        ({"result": "skip", "hidl_verdict": ""}, "skipped", 0),
    ],
)
def test_each_case_has_the_verdict_that_it_deserves(changed: dict[str, Any], verdict: str, code: int) -> None:
    (case,) = judge_cases([PASSED | changed])
    assert (case.verdict, case.exit_code) == (verdict, code)


def test_the_figures_come_by_name_with_their_unit() -> None:
    (case,) = judge_cases([PASSED])
    assert case.figures == {"rate": (2.5, "1/s")}


def test_a_failed_job_comes_before_a_missing_metric_and_that_before_a_verdict() -> None:
    bad = [PASSED | {"result": "fail", "hidl_verdict": "fail", "hidl_exit": code} for code in (11, 10, 9, 8)]
    assert worst_exit_code(judge_cases(bad)) is ExitCode.JOB_FAILED
    assert worst_exit_code(judge_cases(bad[:2])) is ExitCode.BELOW_TARGET
    assert worst_exit_code(judge_cases([PASSED])) is ExitCode.OK


def test_cases_that_were_never_run_are_an_error() -> None:
    listed = [ListedCase("check %scale=1-node", "00000001", None), ListedCase("check %scale=2-nodes", "00000002", None)]
    with pytest.raises(HidlError, match=r"1 of 2 case.*2-nodes"):
        require_complete(judge_cases([PASSED]), listed)


def test_nothing_but_skipped_cases_is_an_error() -> None:
    with pytest.raises(HidlError, match="0 of 1"):
        require_complete(judge_cases([PASSED | {"result": "skip"}]), [ListedCase("check", "00000001", None)])
