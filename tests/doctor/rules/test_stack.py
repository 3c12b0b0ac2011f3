"""What stacks hold: by facts, by locks, and by installations that are really there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from hidl_cli import paths
from hidl_cli.doctor.context import Context
from hidl_cli.doctor.rules.stack import RULES, SUBJECTS, StackContents, probe
from hidl_cli.site.load import load_site
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.stack import installation
from hidl_cli.stack.installation import Installation

KERAS_3 = {"keras": "3.15.1", "horovod": "0.28.1"}
ON_KERAS = StackContents("horovod", "/opt/h", KERAS_3, horovod_supports_keras_3=True)


def findings(facts: StackContents) -> list[tuple[str, str]]:
    return [(finding.rule, finding.severity) for finding in RULES.findings(facts)]


def of(rule: str, facts: StackContents) -> list[tuple[str, str]]:
    return [found for found in findings(facts) if found[0] == rule]


@pytest.fixture(autouse=True)
def no_installations(config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration and no installation of this user is seen."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


# --- HD080


def test_keras_3_with_an_unpatched_horovod_is_an_error() -> None:
    assert of("HD080", replace(ON_KERAS, horovod_supports_keras_3=False)) == [("HD080", "error")]


@pytest.mark.parametrize(
    "facts",
    [
        ON_KERAS,
        replace(ON_KERAS, horovod_supports_keras_3=None),
        replace(ON_KERAS, versions=KERAS_3 | {"keras": "2.15.0"}, horovod_supports_keras_3=False),
        StackContents("mpi", "/opt/m", {"numpy": "2.4.6"}),
    ],
)
def test_other_pairs_are_not(facts: StackContents) -> None:
    assert of("HD080", facts) == []


def test_the_installed_files_report_whether_horovod_supports_keras_3(tmp_path: Path) -> None:
    prefix = tmp_path / "local" / "mine" / "0123456789ab"
    package = prefix / "lib" / "python3.11" / "site-packages" / "horovod" / "_keras"
    package.mkdir(parents=True)
    installed = Installation(prefix, {"packages": KERAS_3})
    context = Context(ThisHost(), load_site("local"), installed)
    unpatched = probe(context).horovod_supports_keras_3
    (package / "keras3.py").touch()

    assert (unpatched, probe(context).horovod_supports_keras_3) == (False, True)


# --- HD081


def test_an_old_package_is_a_warning_that_names_the_version_that_fixes_it() -> None:
    (finding,) = RULES.findings(
        StackContents("mine", "lock.txt", {"torch": "2.5.1+cpu"}, reinstall="hidl install mine")
    )
    assert (finding.rule, finding.severity) == ("HD081", "warning")
    assert finding.fix == "torch>=2.11.0: hidl stack lock mine, then: hidl install mine"
    assert "CVE-2025-32434" in finding.seen


def test_what_no_version_fixes_is_good_to_know() -> None:
    (finding,) = RULES.findings(StackContents("mine", "lock.txt", {"dask": "2026.8.0"}))
    assert (finding.severity, finding.fix.partition(";")[0]) == ("info", "no fixed version")


def test_runs_do_not_repeat_it() -> None:
    assert findings(StackContents("mine", "/opt/m", {"torch": "2.5.1"}, before_run=True)) == []


def test_a_lock_with_an_old_version_is_found(config: Path) -> None:
    old = config / "locks" / "mpi4dask-cp311-linux-x86_64-cpu.txt"
    shipped = (paths.shipped() / "recipes" / "locks" / old.name).read_text()
    old.parent.mkdir(parents=True)
    old.write_text(shipped.replace("tornado==6.5.10", "tornado==6.4.2"))

    found = SUBJECTS[0].examine(Context(ThisHost(), load_site("local"), stack="mpi4dask"))

    (tornado,) = (finding for finding in found if "tornado 6.4.2" in finding.seen)
    assert (tornado.severity, tornado.where) == ("warning", str(old))
    assert "tornado>=6.5.0" in tornado.fix


@pytest.mark.parametrize(
    "stack", ["mpi", "openmpi", "omb", "pytorch", "tensorflow", "horovod", "mpi4dask", "hyparflow"]
)
def test_todays_locks_give_nothing_above_info(stack: str) -> None:
    found = SUBJECTS[0].examine(Context(ThisHost(), load_site("local"), stack=stack))
    assert {(finding.rule, finding.severity) for finding in found} <= {("HD081", "info")}


# --- HD082


@pytest.fixture
def installed(stack_prefix: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of the mpi stack's installation that may be damaged."""
    original = stack_prefix("mpi")
    copy = tmp_path / "local" / "mpi" / original.name
    shutil.copytree(original, copy, symlinks=True, ignore=shutil.ignore_patterns("lib", "include", "share"))
    return copy


def examined(prefix: Path) -> list[str]:
    """What is wrong with the installation, by the rule HD082."""
    held = installation.at(prefix) or Installation(prefix, {})
    found = SUBJECTS[0].examine(Context(ThisHost(), load_site("local"), held))
    return [finding.seen.partition(": ")[2] for finding in found if finding.rule == "HD082"]


def test_a_whole_installation_is_not_a_finding(installed: Path) -> None:
    assert examined(installed) == []


def test_a_missing_part_is_named(installed: Path) -> None:
    (installed / "bin" / "mpiexec").unlink()
    assert examined(installed) == [f"{installed}/bin/mpiexec is missing"]


def test_a_lost_interpreter_is_found(installed: Path) -> None:
    (installed / "bin" / "python").unlink()
    assert examined(installed) == ["its manifest or Python is missing or damaged"]


def test_programs_of_another_hidl_are_found(installed: Path) -> None:
    file = installed / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["own"]["hidl-workloads"]["digest"] = "0" * 64
    file.write_text(json.dumps(manifest))
    assert examined(installed) == ["its hidl-workloads belongs to another version of hidl"]


def test_the_cure_is_the_command_that_installs_it_there(installed: Path, tmp_path: Path) -> None:
    (installed / "bin" / "mpiexec").unlink()
    context = Context(ThisHost(), load_site("local"), installation.at(installed))
    (finding,) = (each for each in SUBJECTS[0].examine(context) if each.rule == "HD082")
    assert finding.fix == f"hidl install mpi --prefix {tmp_path} (keeps the lockfile)"


def test_before_a_run_the_installation_is_looked_at_too(installed: Path) -> None:
    (installed / "bin" / "mpiexec").unlink()
    plan = SimpleNamespace()
    context = Context(ThisHost(), load_site("local"), installation.at(installed), plan=plan)  # type: ignore[arg-type]
    assert [finding.rule for finding in SUBJECTS[0].examine(context)] == ["HD082"]
