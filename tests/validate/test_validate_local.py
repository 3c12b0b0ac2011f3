"""``hidl validate`` on this machine, through real ReFrame."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.errors import MissingPrecondition
from hidl_cli.validate import reframe
from tests.conftest import PROGRAMS, REPOSITORY, Hidl
from tests.validate.conftest import cases
from tests.waiting import patience, until

pytestmark = pytest.mark.real


@pytest.mark.deep  # each half of it alone: a check that passes in test_omb.py, JUnit below
def test_the_smoke_suite_passes_and_leaves_runs_like_any_other(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi", "pytorch")

    document = hidl.json("validate", "--tag", "smoke", "--junit", str(tmp_path / "junit.xml"))

    found = cases(document)
    # Where other tests have installed more stacks, there are more checks.
    assert {name.split()[0] for name in found} >= {"mpi_sanity", "resnet50_smoke", "kmeans_smoke"}
    assert document["counts"] == {"pass": len(found), "fail": 0, "inconclusive": 0, "skipped": 0}
    assert {each["run"] for each in hidl.json("results", "list")["results"]} == {case["run"] for case in found.values()}
    assert ET.parse(tmp_path / "junit.xml").getroot()[0].get("tests") == str(len(found))
    assert any("framework=tensorflow" in name for name in document["left_out"])
    assert Path(document["directory"]).is_relative_to(hidl.runs.parent)


@pytest.mark.deep
def test_gpt_trains_in_every_kind_of_parallelism_and_is_judged(hidl_with: Callable[..., Hidl]) -> None:
    hidl = hidl_with("pytorch")
    found = cases(hidl.json("validate", "--check", "gpt_smoke"))
    assert {case["verdict"] for case in found.values()} == {"pass"}
    assert len(found) == 5

    sets = [f"--set={each}" for each in ("backend=mpi", "total_batch=8", "layers=2", "width=32", "vocabulary=100")]
    study = hidl("run", "gpt-strong", "--scale", "ranks=1,2", "--target", "0.01", *sets)
    assert study.returncode == 0, study.stderr
    assert "Strong scaling of step_time" in study.stdout


@pytest.mark.deep
def test_a_study_that_scales_passes_by_hidls_own_verdict(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "paced")).values()

    verdict = json.loads((Path(case["directory"]) / "verdict.json").read_text())
    assert (case["verdict"], verdict["verdict"]) == ("pass", "pass")
    assert case["figures"]["efficiency"][0] == pytest.approx(verdict["study"]["steps"][-1]["efficiency"])
    assert [each["round"] for each in verdict["study"]["observations"]] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_one_slowed_rank_turns_the_verdict_to_fail(hidl: Hidl, tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"

    (case,) = cases(hidl.json("validate", "--check", "slowed", "--junit", str(junit), status=10)).values()

    assert case["verdict"] == "fail"
    assert "below the target 0.700" in case["reason"]
    failure = ET.parse(junit).getroot().find(".//failure")
    assert failure is not None
    assert failure.get("type") == "fail"


@pytest.fixture
def neighbours() -> Iterator[None]:
    """Others who compute on every core, now and then."""
    hogs = [
        subprocess.Popen([sys.executable, PROGRAMS / "hog.py", str(core), str(core)], stdout=subprocess.PIPE, text=True)
        for core in os.sched_getaffinity(0)
    ]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            assert hog.stdout.readline() == "here\n"
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


@pytest.mark.deep
@pytest.mark.usefixtures("neighbours")
def test_a_noisy_machine_is_inconclusive_and_no_pass(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "disturbed", status=11)).values()
    assert case["verdict"] == "inconclusive"
    assert "is known only to" in case["reason"]


@pytest.mark.deep
def test_one_repetition_is_inconclusive_and_no_pass(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "once", status=11)).values()
    assert case["verdict"] == "inconclusive"


@pytest.mark.deep
def test_a_metric_that_is_missing_ends_with_9(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "silent", status=9)).values()
    assert "metric rate is not in" in case["reason"]


def test_a_job_that_fails_is_reported_with_its_likely_cause_and_the_cure(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "broken", status=8)).values()
    assert "likely cause: A Python module is missing (HD150)" in case["reason"]
    assert "add no_such_module to a stack" in case["hint"]


@pytest.mark.deep
def test_a_job_that_reaches_its_time_limit_has_failed(hidl: Hidl) -> None:
    (case,) = cases(hidl.json("validate", "--check", "hanging", "--time", "00:00:03", status=8)).values()

    assert "time limit" in case["reason"]
    assert hidl.json("status", case["run"])["state"] == "TIMEOUT"


@pytest.mark.deep
def test_the_gravest_of_several_cases_is_the_exit_code(hidl: Hidl) -> None:
    document = hidl.json("validate", "--check", "silent", "--check", "once", status=9)
    assert document["counts"] == {"pass": 0, "fail": 1, "inconclusive": 1, "skipped": 0}


@pytest.mark.deep
def test_a_selection_that_matches_nothing_is_an_error(hidl: Hidl) -> None:
    no_scale = hidl("validate", "--tag", "scale")
    no_check = hidl("validate", "--check", "paced", "--check", "no_such")

    assert (no_scale.returncode, no_check.returncode) == (2, 2)
    assert "no_such" in no_check.stderr
    assert not hidl.runs.exists()


def test_a_check_that_cannot_be_read_is_an_error(hidl: Hidl) -> None:
    (hidl.config / "reframe_checks" / "broken.py").write_text(
        "import reframe as rfm\nimport no_such_module\n\n\n"
        "@rfm.simple_test\nclass broken(rfm.RegressionTest):\n    pass\n"
    )
    completed = hidl("validate", "--check", "paced")
    assert completed.returncode == 1
    assert "no_such_module" in completed.stderr


def test_a_dry_run_prints_configuration_and_command_and_touches_nothing(hidl: Hidl) -> None:
    text = hidl("validate", "--dry-run").stdout
    document = hidl.json("validate", "--dry-run")

    assert "site_configuration = " in text
    assert "--run" in text
    assert document["configuration"]["systems"][0]["partitions"][0]["scheduler"] == "local"
    assert not (hidl.runs.parent / "validate").exists()


@pytest.mark.deep
def test_only_one_at_a_time_and_an_interrupt_ends_its_runs(hidl: Hidl) -> None:
    with hidl.start("validate", "--check", "hanging", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as first:
        run = _first_run(hidl)
        second = hidl("validate", "--check", "hanging")
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=patience(300))

    assert second.returncode == 4
    assert f"hidl with pid {first.pid}" in second.stderr
    assert first.returncode == 130
    assert hidl.json("status", run)["state"] in ("INTERRUPTED", "CANCELLED", "FAILED")


def _first_run(hidl: Hidl) -> str:
    """The id of the only run, once its program has been started."""
    begun = until(
        lambda: [file for file in hidl.runs.glob("*/status.json") if json.loads(file.read_text())["step"] == 1]
    )
    return begun[0].parent.name


@pytest.mark.deep
def test_plain_reframe_lists_the_checks_with_and_without_our_settings(hidl: Hidl, tmp_path: Path) -> None:
    checks = REPOSITORY / "reframe_checks"
    words = [str(Path(sys.executable).with_name("reframe")), "-c", str(checks), "--list"]

    bare = _run(words, hidl, tmp_path)
    configured = _run([*words, "-C", str(checks / "settings.py")], hidl, tmp_path)

    assert "- mpi_sanity %scale=1-rank" in bare
    assert "- mpi_sanity %scale=1-rank" in configured
    assert "framework=tensorflow" in bare
    assert "framework=tensorflow" not in configured  # its stack is not installed


@pytest.mark.parametrize(("site", "reason"), [("oakforest-pacs", "not supported yet"), ("no-such", "unknown site")])
def test_plain_reframe_reports_why_a_site_cannot_run(hidl: Hidl, tmp_path: Path, site: str, reason: str) -> None:
    checks = REPOSITORY / "reframe_checks"
    words = [str(Path(sys.executable).with_name("reframe")), "-C", str(checks / "settings.py"), "-c", str(checks), "-l"]
    environment = hidl.environment | {"HOME": str(tmp_path), "HIDL_SITE": site}
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (1, done.stderr.splitlines()[0])
    assert reason in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_plain_reframe_runs_a_check_without_any_settings(hidl: Hidl, tmp_path: Path) -> None:
    checks = REPOSITORY / "reframe_checks"
    words = [str(Path(sys.executable).with_name("reframe")), "-c", str(checks), "-n", "mpi_sanity%", "-r"]
    assert "Ran 2/2 test case(s)" in _run(words, hidl, tmp_path)


def _run(words: list[str], hidl: Hidl, directory: Path) -> str:
    environment = hidl.environment | {"HOME": str(directory)}
    completed = subprocess.run(
        words, env=environment, cwd=directory, capture_output=True, text=True, timeout=patience(300), check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def test_where_reframe_is_missing_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        assert name == "reframe"

    monkeypatch.setattr("importlib.util.find_spec", missing)
    with pytest.raises(MissingPrecondition) as error:
        reframe.reframe_command("--version")
    assert "pip install 'hidl[validate]'" in str(error.value.hint)


def test_variables_of_reframe_in_the_environment_have_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RFM_SYSTEM", "elsewhere")
    assert "RFM_SYSTEM" not in reframe.environment()
    assert os.environ["PATH"] == reframe.environment()["PATH"]


@pytest.mark.deep
def test_dask_is_checked_over_both_protocols_with_scheduler_and_client_on_top(hidl_with: Callable[..., Hidl]) -> None:
    found = cases(hidl_with("mpi4dask").json("validate", "--check", "dask_smoke"))
    runs = {name: case for name, case in found.items() if "application=dask-transpose" in name}
    assert {case["verdict"] for case in found.values()} == {"pass"}
    assert {word for name in runs for word in name.split() if word.startswith("%protocol")} == {
        "%protocol=mpi",
        "%protocol=tcp",
    }
    assert {case["figures"]["workers"][0] for case in found.values()} == {2}


@pytest.mark.deep
def test_xgboost_is_checked_over_both_protocols(hidl_with: Callable[..., Hidl]) -> None:
    found = cases(hidl_with("dask-xgboost").json("validate", "--check", "dask_smoke"))
    assert {case["verdict"] for case in found.values()} == {"pass"}
    assert {name.split()[2] for name in found} == {"%application=dask-xgboost"}
    assert len(found) == 2


@pytest.mark.deep
def test_trainings_on_data_are_checked(hidl_with: Callable[..., Hidl]) -> None:
    found = cases(hidl_with("pytorch").json("validate", "--check", "data_smoke"))
    assert {case["verdict"] for case in found.values()} == {"pass"}
    assert len(found) == 2
    assert all(case["figures"]["epoch_time"][0] > 0 for case in found.values())


@pytest.mark.deep
def test_each_network_for_images_is_checked(hidl_with: Callable[..., Hidl]) -> None:
    found = cases(hidl_with("pytorch").json("validate", "--check", "image_training_smoke"))
    assert {case["verdict"] for case in found.values()} == {"pass"}
    assert len(found) == 5
