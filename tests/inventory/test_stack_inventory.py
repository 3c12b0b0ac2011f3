"""``hidl stack sbom`` and ``hidl stack audit`` on a real installation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.conftest import Hidl
from tests.inventory.test_osv import record

pytestmark = pytest.mark.real


def test_the_bill_of_an_installed_stack(hidl_with: Callable[..., Hidl], stack_prefix: Callable[[str], Path]) -> None:
    hidl = hidl_with("mpi")
    printed = hidl("stack", "sbom", "mpi")
    assert printed.returncode == 0, printed.stderr
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(printed.stdout) is None
    names = {entry["name"] for entry in json.loads(printed.stdout)["components"]}
    installed = {
        each.name.split("-")[0].lower() for each in stack_prefix("mpi").glob("lib/python3*/site-packages/*.dist-info")
    }
    assert {name.replace("-", "_") for name in names} == installed
    file = Path(hidl.environment["HOME"]) / "bill.json"
    assert hidl("stack", "sbom", "mpi", stack_prefix("mpi").name[:6], "--output", str(file)).returncode == 0
    assert file.read_text() == printed.stdout
    assert hidl("stack", "sbom", "mpi", "ffffffffffff").returncode == 4


def test_an_audit_names_what_counts_and_ends_with_4(hidl_with: Callable[..., Hidl], tmp_path: Path) -> None:
    hidl = hidl_with("mpi")
    assert hidl("stack", "audit").returncode == 0
    file = tmp_path / "osv.json"
    file.write_text(
        json.dumps(record([{"introduced": "0"}], "mpi4py", summary="a planted flaw", aliases=["CVE-2026-1"]))
    )
    found = hidl("stack", "audit", "mpi", "--advisories", str(file))
    assert found.returncode == 4
    assert "PYSEC-2026-1" in found.stdout
    assert "a planted flaw" in found.stdout
    told = hidl("stack", "audit", "--advisories", str(file), "--ignore", "CVE-2026-1", "--json")
    assert told.returncode == 0
    (installed,) = json.loads(told.stdout)["installations"]
    assert installed["stack"] == "mpi"
    assert [each["handled"] for each in installed["vulnerabilities"]] == ["ignored (--ignore)"]
    assert hidl("stack", "audit", "--advisories", "/etc/passwd").returncode == 3
    beside = tmp_path / "advisories"
    beside.mkdir()
    (beside / "a.json").write_text(json.dumps(record([{"introduced": "0"}], "unrelated")))
    assert hidl("stack", "audit", "--advisories", str(beside)).returncode == 0
    (beside / "b.json.gz").write_text("")
    incomplete = hidl("stack", "audit", "--advisories", str(beside))
    assert incomplete.returncode == 11
    assert "at least 0 known vulnerabilities" in incomplete.stderr
    assert "b.json.gz" in incomplete.stderr
    told = hidl.json("stack", "audit", "--advisories", str(beside), status=11)
    assert told["unread"] == [str(beside / "b.json.gz")]
    (beside / "b.json.gz").unlink()
    by_commit = record([], "mpi4py")
    by_commit["affected"][0]["ranges"].pop(0)
    (beside / "b.json").write_text(json.dumps(by_commit))
    undecided = hidl("stack", "audit", "mpi", "--advisories", str(beside))
    assert (undecided.returncode, "undecided: read the advisory" in undecided.stdout) == (11, True)
