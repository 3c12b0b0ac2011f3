"""What the page says about a season of nightlies, and about single runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from hidl_cli.analysis.scaling import Observation, judge, to_json
from hidl_cli.plan.options import RunRequest
from hidl_cli.record import Run, State
from hidl_cli.report.build import grouped, page_of, slow_hosts
from hidl_cli.report.html import to_html
from hidl_cli.report.model import Curve, HeatMap, LoadedRun, Outcome, Page, Standing, Trend, load
from tests.report import example

STUDY = RunRequest("resnet50", scale="1,2", repeat=3, target=0.8, ranks_per_node=4)

Make = Callable[..., Run]


def page_about(*runs: Run, baseline: Run | None = None) -> Page:
    return page_of(
        [load(run) for run in runs],
        detect=lambda values, days: (),
        generated="2026-10-20T06:00:00+00:00",
        hidl="1.2.3",
        selection="these",
        baseline=load(baseline) if baseline else None,
    )


def standing(page: Page, name: str) -> Standing:
    return next(standing for standing in page.standings if standing.name == name)


def trend(page: Page, metric: str, name: str = "resnet50") -> Trend:
    return next(trend for trend in page.trends if (trend.metric, trend.name) == (metric, name))


class TestSummary:
    def test_the_gravest_stands_first(self, page: Page) -> None:
        assert [standing.outcome.value for standing in page.standings] == [
            *("fail", "broken", "inconclusive", "pass", "unjudged", "unjudged")
        ]

    def test_an_outcome_is_reported_with_the_night_since_when_it_is_so(self, page: Page) -> None:
        resnet50 = standing(page, "resnet50")
        assert (resnet50.outcome, resnet50.since[:10]) == (Outcome.FAIL, "2026-09-17")
        assert (resnet50.in_a_row, resnet50.always) == (5, False)

    def test_an_outcome_that_never_was_another_is_reported_so(self, page: Page) -> None:
        assert standing(page, "pingpong").always

    def test_the_reason_is_the_verdicts(self, page: Page) -> None:
        assert "below the target 0.850" in standing(page, "resnet50").reason

    def test_parameters_that_are_not_the_usual_ones_are_reported(self, page: Page) -> None:
        assert standing(page, "resnet50 framework=tensorflow").detail.endswith("tensorflow · mvapich2-gdr")

    def test_the_tally_counts_what_is_measured_not_how_often(self, page: Page) -> None:
        assert sum(page.tally().values()) == len(page.standings) == 6

    def test_a_slow_node_and_a_step_for_the_worse_are_noticed(self, page: Page) -> None:
        changed = "efficiency of resnet50 at 8 nodes on example/compute changed by"
        assert any(noticed.startswith(changed) for noticed in page.noticed())

    def test_a_failed_job_is_reported_with_its_stderr(self, page: Page) -> None:
        record = next(run for run in page.runs if run.outcome is Outcome.BROKEN)
        assert record.reason == "reached its time limit"
        assert "DUE TO TIME LIMIT" in record.complaint

    def test_the_stderr_of_a_failed_job_is_shown_without_secrets(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, lambda _: [], state=State.FAILED)
        run.stdout.write_text("password: correct-horse-4711\n")
        run.stderr.write_text("--token q7Zr8Kp2Wm5Xv9Tb4" + "x" * 8188 + "\nsent correct-horse-4711\n")
        assert page_about(run).runs[0].complaint == "sent ***"

    def test_a_secret_of_the_environment_is_hidden_everywhere(
        self, nights: example.Nights, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = nights.run(STUDY, 0, nights.training(), warnings=("connecting with 0123456789abcdef",))
        monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
        assert page_about(run).runs[0].warnings == ("connecting with ***",)

    def test_a_job_that_goes_on_is_reported(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, nights.training(), state=State.RUNNING)
        assert page_about(run).standings[0].outcome is Outcome.ACTIVE

    def test_a_metric_that_is_missing_is_a_failure(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, lambda _: [])
        assert page_about(run).standings[0].outcome is Outcome.FAIL

    def test_no_run_makes_an_empty_page(self) -> None:
        assert page_about() == replace(page_about(), standings=(), runs=(), trends=())


class TestKinds:
    @pytest.mark.parametrize(
        "other",
        [
            replace(STUDY, parameters=["batch=16"]),
            replace(STUDY, scale="1,2,4"),
            replace(STUDY, ranks_per_node=2),
            replace(STUDY, launcher="mpirun_rsh", mpi="stack"),
        ],
    )
    def test_other_measurements_are_not_compared(self, nights: example.Nights, other: RunRequest) -> None:
        if other.mpi:
            other = replace(other, launcher="srun")
        runs = [nights.run(STUDY, 0, nights.training()), nights.run(other, 1, nights.training())]
        assert len(grouped([load(run) for run in runs])) == 2

    def test_lock_hosts_and_tuning_are_what_changes(self, nights: example.Nights) -> None:
        tuned = replace(STUDY, tuning=["MV2_USE_RDMA_CM=1"])
        runs = [
            nights.run(STUDY, 0, nights.training()),
            nights.run(tuned, 1, nights.training(), lock="ab" * 32, hosts=("gpu09", "gpu10")),
        ]
        assert len(grouped([load(run) for run in runs])) == 1


class TestHistory:
    def test_a_step_is_found_on_its_night_with_what_changed_then(self, page: Page) -> None:
        (change,) = trend(page, "efficiency").changes
        assert change.created[:10] == "2026-09-15"
        assert change.differs == ("lock: 5d1f5d1f5d1f → 77c077c077c0",)

    def test_its_size_is_that_of_the_levels(self, page: Page) -> None:
        (change,) = trend(page, "images_per_second").changes
        assert change.relative == pytest.approx((0.915 / 0.97) ** 5 - 1, abs=0.01)

    @pytest.mark.parametrize(("metric", "worse"), [("images_per_second", True), ("step_time", True)])
    def test_which_direction_is_worse_is_the_metrics(self, page: Page, metric: str, worse: bool) -> None:
        found = trend(page, metric)
        assert found.is_worse(found.changes[0]) is worse

    def test_efficiency_has_its_interval_and_the_rest_the_range_of_its_repetitions(self, page: Page) -> None:
        for metric in ("efficiency", "step_time"):
            point = trend(page, metric).points[0]
            assert point.low is not None
            assert point.high is not None
            assert point.low < point.value < point.high

    def test_a_run_that_measured_0_is_a_point(self, nights: example.Nights) -> None:
        products = RunRequest("matmul", nodes=1)
        rate = {"name": "rate", "unit": "GFLOP/s"}
        runs = [
            nights.run(products, night, lambda _, value=value: [{**rate, "value": value, "samples": [value]}])
            for night, value in enumerate((0.0, 0.0, 72.0, 72.0, 0.0, 0.0))
        ]
        read = [load(run) for run in runs]
        page = page_of(read, detect=lambda values, days: [2, 4], generated="", hidl="", selection="")
        found = trend(page, "rate", "matmul")
        assert [point.value for point in found.points] == [0.0, 0.0, 72.0, 72.0, 0.0, 0.0]
        assert [(change.before, change.after) for change in found.changes] == [(0.0, 72.0), (72.0, 0.0)]
        assert [change.relative for change in found.changes] == [1.0, -1.0]
        assert "+100.0 %" in to_html(page)

    def test_one_run_is_not_a_history(self, nights: example.Nights) -> None:
        assert page_about(nights.run(STUDY, 0, nights.training())).trends == ()

    def test_a_failed_run_is_not_a_point(self, nights: example.Nights) -> None:
        runs = [nights.run(STUDY, night, nights.training()) for night in range(2)]
        broken = nights.run(STUDY, 2, nights.training(), state=State.FAILED)
        assert len(trend(page_about(*runs, broken), "efficiency").points) == 2

    def test_all_that_can_change_is_reported(self, nights: example.Nights) -> None:
        before = nights.run(STUDY, 0, nights.training())
        tuned = replace(STUDY, tuning=["MV2_IBA_EAGER_THRESHOLD=32K"])
        after = nights.run(tuned, 1, nights.training(), hosts=("gpu01", "gpu09"), hidl="9.9", modules=("cuda/12",))
        page = page_of(
            [load(before), load(after)], detect=lambda values, days: [1], generated="", hidl="", selection=""
        )
        assert trend(page, "efficiency").changes[0].differs == (
            "hosts: gpu[01-02] → gpu[01,09]",
            "modules: cuda/11.6 mvapich2-gdr/2.3.7 → cuda/12",
            f"hidl: {load(before).plan.hidl} → 9.9",
            "MV2_IBA_EAGER_THRESHOLD: 65536 → 32768",
        )


class TestScaling:
    def test_the_newest_study_of_each_kind_is_shown(self, page: Page) -> None:
        newest = {standing.newest.run for standing in page.standings}
        assert [scaling.study.kind for scaling in page.scalings] == ["weak", "weak", "strong"]
        assert {scaling.run for scaling in page.scalings} <= newest

    def test_a_study_that_another_version_wrote_is_left_out(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, nights.training())
        verdict = run.document("verdict")
        assert verdict is not None
        run.write("verdict", verdict | {"study": {"schema": "hidl.verdict/99"}})
        page = page_about(run)
        assert page.scalings == ()
        assert page.standings[0].outcome is Outcome.PASS


class TestSizes:
    def curve(self, page: Page, metric: str) -> Curve:
        return next(curve for curve in page.curves if curve.metric == metric)

    def test_the_newest_run_is_held_against_the_first(self, page: Page, season: list[Run]) -> None:
        found = self.curve(page, "latency")
        runs = [run.id for run in season if "pingpong" in run.id]
        assert found.baseline is not None
        assert (found.line.run, found.baseline.run) == (runs[-1], runs[0])
        assert found.better == "lower"

    def test_every_size_has_its_value(self, page: Page) -> None:
        assert [size for size, _ in self.curve(page, "bandwidth").line.points] == list(example.SIZES)

    def test_repetitions_are_averaged_size_by_size(self, nights: example.Nights) -> None:
        values = iter([[2.0, 8.0], [8.0, 8.0]])

        def measure(_: object) -> example.Metrics:
            keys = {"sizes": [1, 1024], "samples": next(values)}
            bandwidth = {"name": "bandwidth", "value": 1.0, "unit": "MB/s", "samples": []}
            return [{"name": "latency", "value": 1.0, "unit": "us", **keys}, bandwidth]

        run = nights.run(RunRequest("pingpong", nodes=2, repeat=2), 0, measure)
        assert self.curve(page_about(run), "latency").line.points == ((1, pytest.approx(4)), (1024, pytest.approx(8)))

    @pytest.mark.parametrize(
        ("sizes", "told"),
        [([0, 8], [(0, 1.0), (8, 2.0)]), ([0, 10**400], None), ([5, 7], [(5, 1.0), (7, 2.0)])],
    )
    def test_a_size_of_nothing_is_reported_and_not_drawn(
        self, nights: example.Nights, sizes: list[int], told: list[tuple[int, float]] | None
    ) -> None:
        latency = {"name": "latency", "value": 1.0, "unit": "us", "samples": [1.0, 2.0], "sizes": sizes}
        bandwidth = {"name": "bandwidth", "value": 1.0, "unit": "MB/s", "samples": []}
        page = page_about(nights.run(RunRequest("pingpong", nodes=2), 0, lambda _: [latency, bandwidth]))
        assert [list(curve.line.points) for curve in page.curves] == ([] if told is None else [told])
        assert to_html(page).count("message size, bytes") == len(page.curves)

    def test_the_only_run_has_no_baseline_unless_one_is_named(self, nights: example.Nights) -> None:
        old, new = (nights.run(RunRequest("pingpong", nodes=2), night, nights.pingpong()) for night in range(2))
        assert self.curve(page_about(new), "latency").baseline is None
        named = self.curve(page_about(new, baseline=old), "latency").baseline
        assert named is not None
        assert named.run == old.id


class TestNodes:
    def heat_map(self, nights: example.Nights, slow: dict[int, float]) -> HeatMap:
        products = RunRequest("matmul", nodes=8, ranks_per_node=4)
        (found,) = page_about(*(nights.run(products, night, nights.products(slow)) for night in range(3))).heat_maps
        return found

    def test_a_slow_node_is_named(self, nights: example.Nights) -> None:
        assert self.heat_map(nights, {2: 0.9}).slow == ("gpu03",)

    def test_no_node_is_slow_where_all_are_alike(self, nights: example.Nights) -> None:
        assert self.heat_map(nights, {}).slow == ()

    def test_has_a_column_for_each_run_of_one_minute(self, nights: example.Nights) -> None:
        products = RunRequest("matmul", nodes=8, ranks_per_node=4)
        runs = [nights.run(products, second / 86400, nights.products({})) for second in range(3)]
        (found,) = page_about(*runs).heat_maps
        assert len(set(found.columns)) == 3

    def test_each_run_is_a_column_and_each_host_a_row(self, nights: example.Nights) -> None:
        found = self.heat_map(nights, {2: 0.9})
        assert (len(found.columns), [row.host for row in found.rows]) == (3, [f"gpu0{n}" for n in range(1, 9)])
        assert found.rows[2].lately == pytest.approx(-0.1, abs=0.01)

    def test_runs_on_one_node_each_are_pooled(self, nights: example.Nights) -> None:
        runs = [
            nights.run(RunRequest("matmul"), night, nights.products({0: 0.8} if host == "gpu9" else {}), hosts=(host,))
            for night, host in enumerate(["gpu9", "gpu10", "gpu11", "gpu12", "gpu9"])
        ]
        # Their one rank names itself, so what is pooled is what that rank's host yielded.
        (found,) = page_about(*runs).heat_maps
        assert found.columns == ("5 runs on one node",)
        assert ([row.host for row in found.rows], found.slow) == (["gpu9", "gpu10", "gpu11", "gpu12"], ("gpu9",))

    def test_copies_are_shown_by_host_with_the_slow_one_named(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, nights.training())
        rates = {"gpu01": 100.0, "gpu02": 100.6, "gpu03": 99.5, "gpu04": 80.0, "gpu05": 100.2}
        copies = [
            Observation(1, number, rate * (1 + number / 1000), "copy", (host,))
            for number in (1, 2, 3)
            for host, rate in rates.items()
        ]
        steps = [Observation(2, number, 190.0 + number) for number in (1, 2, 3)]
        study = judge(
            kind="weak",
            target=0.8,
            metric="images_per_second",
            unit="images/s",
            step_unit="nodes",
            observations=[*copies, *steps],
        )
        verdict = run.document("verdict") or {}
        run.write("verdict", {**verdict, "study": to_json(study)})
        (found,) = page_about(run).heat_maps
        assert (found.metric, found.slow, len(found.rows)) == ("images_per_second", ("gpu04",), 5)

    def test_three_hosts_are_too_few_to_call_one_slow(self) -> None:
        assert slow_hosts([{"a": 1.0, "b": 1.0, "c": 0.5}]) == set()


class TestProvenance:
    def test_it_reports_where_a_run_comes_from(self, season: list[Run], page: Page) -> None:
        record = next(run for run in page.runs if run.id == season[0].id)
        assert (record.hosts, record.host_count) == ("gpu[01-08]", 8)
        assert record.mpi == "mvapich2-gdr 2.3.7 (mvapich2-gdr of the site)"
        assert record.modules == ("cuda/11.6", "mvapich2-gdr/2.3.7")
        assert ("mpi4py", "4.1.2") in record.packages
        assert "/opt/mvapich2-gdr/2.3.7/bin/mpirun_rsh -np 32" in record.launch_line
        assert ("MV2_IBA_EAGER_THRESHOLD", "65536", "site example") in [
            (tuned.name, tuned.value, tuned.origin) for tuned in record.tuning
        ]

    def test_all_metrics_of_all_steps_are_there(self, season: list[Run], page: Page) -> None:
        record = next(run for run in page.runs if run.id == season[0].id)
        assert [len(measured.values) for measured in record.measured] == [5] * (4 * 3)

    def test_invalid_host_names_are_reported_as_they_are(self, nights: example.Nights) -> None:
        run = nights.run(STUDY, 0, nights.training(), hosts=("gpu01", "<b>"))
        assert page_about(run).runs[0].hosts == "gpu01,<b>"


def test_a_secret_of_a_parameter_is_hidden_in_the_stderr_of_a_failed_run(nights: example.Nights) -> None:
    request = RunRequest("kmeans", nodes=1, parameters=["note=https://user:s3cr3tVALUE@host/"])
    stderr = "cannot log in with s3cr3tVALUE\n"
    html = to_html(page_about(nights.run(request, 0, lambda _: [], state=State.FAILED, stderr=stderr)))
    assert "cannot log in with ***" in html
    assert "s3cr3tVALUE" not in html


def test_a_run_whose_metrics_are_half_gone_is_still_shown(nights: example.Nights) -> None:
    run = nights.run(STUDY, 0, nights.training())
    run.metrics_file(1).unlink()
    loaded: LoadedRun = load(run)
    assert loaded.worlds[0] == ()
    assert not math.isnan(page_about(run).runs[0].measured[0].values[0])  # type: ignore[arg-type]
