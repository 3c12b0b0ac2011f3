"""Rules on the site file alone, for shipped and made-up sites."""

from __future__ import annotations

from typing import Any

import pytest

from hidl_cli.batch_systems import SYSTEMS
from hidl_cli.doctor.rules.configuration import SITE_FILE_RULES
from hidl_cli.site.load import load_site
from hidl_cli.site.schema import Site
from tests.conftest import Hidl
from tests.stack.spack.conftest import site as spack_site


def site(**keys: Any) -> Site:
    """A site whose node type has cores."""
    return spack_site(**{"node_types": {"node": {"cores": 8}}} | keys)


def findings(site: Site) -> list[tuple[str, str, str | None]]:
    return [(finding.rule, finding.severity, finding.where) for finding in SITE_FILE_RULES.findings(site)]


@pytest.mark.parametrize("status", ["in-service", "early", "declining", "planned", None])
def test_a_site_that_is_not_retired_has_no_finding(status: str | None) -> None:
    assert findings(site(status=status)) == []


def test_a_retired_site_is_an_error_with_its_successor() -> None:
    (finding,) = SITE_FILE_RULES.findings(site(status="retired", successor="vista"))
    assert (finding.rule, finding.severity, finding.fix) == ("HD090", "error", "hidl site show vista")


@pytest.mark.parametrize("scheduler", ["local", *SYSTEMS])
def test_a_supported_scheduler_has_no_finding(scheduler: str) -> None:
    assert "HD097" not in [rule for rule, *_ in findings(site(scheduler=scheduler))]


@pytest.mark.parametrize("scheduler", ["pjm", "sunway"])
def test_an_unsupported_scheduler_is_an_error(scheduler: str) -> None:
    assert findings(site(scheduler=scheduler)) == [("HD097", "error", "here")]


def test_an_unknown_scheduler_is_an_error_with_the_supported_ones() -> None:
    (finding,) = SITE_FILE_RULES.findings(site(scheduler=None))
    assert (finding.rule, finding.seen) == ("HD097", "site here: unknown scheduler")
    assert "slurm" in finding.fix


def test_names_in_a_fix_are_quoted_for_the_shell() -> None:
    (finding,) = SITE_FILE_RULES.findings(site(status="retired", successor="x; rm -rf ~"))
    assert "hidl site show 'x; rm -rf ~'" in finding.fix


def without_cores(**keys: Any) -> Site:
    return site(node_types={"node": {"gpus": 0}, "unused": {}}, **keys)


def test_unknown_cores_of_a_node_type_in_use_are_a_warning() -> None:
    (finding,) = SITE_FILE_RULES.findings(without_cores())
    assert (finding.rule, finding.severity, finding.where) == ("HD098", "warning", "node")
    assert "has 16 cores" in finding.why


@pytest.mark.parametrize("name", ["local", "test-cluster"])
def test_cores_that_the_machine_reports_are_not_missing(name: str) -> None:
    assert "HD098" not in [rule for rule, *_ in findings(load_site(name))]


def test_doctor_of_a_site_on_another_machine_reports_its_file(hidl: Hidl) -> None:
    document = hidl.json("doctor", "--site", "lonestar6")
    assert [each["where"] for each in document["findings"] if each["rule"] == "HD098"] == ["a100-small"]


def test_site_check_reports_what_follows_from_unknown_cores(hidl: Hidl) -> None:
    assert (
        "node_types.a100-small.cores (ranks are not bound to cores; a twin's nodes get 16 cores)"
        in hidl("site", "check", "lonestar6").stdout
    )
