"""ReFrame itself loads what hidl makes for each site, in a process of its own, and finds checks to run there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.inputs.load import load
from hidl_cli.inputs.overlay import list_all
from hidl_cli.plan.devices import reason_not_runnable
from hidl_cli.site.checks import RULES
from hidl_cli.stack.installation import CURRENT, MANIFEST
from hidl_cli.validate.bridge import CheckLocation
from hidl_cli.validate.session import ValidationRequest, prepare
from tests.conftest import REPOSITORY, Hidl
from tests.waiting import patience

CHECKS = REPOSITORY / "reframe_checks"


def running() -> Iterator[Any]:
    """The shipped sites that run jobs; deep, but the first of each scheduler."""
    seen = set()
    for entry in list_all("site"):
        if entry.origin == "shipped" and not reason_not_runnable(site := load(RULES, entry.name)):
            yield pytest.param(entry.name, marks=[pytest.mark.deep] if site.scheduler in seen else [])
            seen.add(site.scheduler)


RUNNING = [*running()]


@pytest.fixture
def hidl_at(hidl: Hidl, stack_prefix: Callable[[str], Path]) -> Callable[[str], Hidl]:
    """``hidl_at("frontera")``: hidl with stack mpi installed for that site; for ``local`` it is."""

    def at(site: str) -> Hidl:
        installed = stack_prefix("mpi")
        prefix = Path(hidl.environment["XDG_DATA_HOME"]) / "hidl" / "installations" / site / "mpi" / installed.name
        if not prefix.exists():
            (prefix / "bin").mkdir(parents=True)
            (prefix / "bin" / "python").symlink_to(installed / "bin" / "python")
            manifest = json.loads((installed / MANIFEST).read_text()) | {"site": site}
            (prefix / MANIFEST).write_text(json.dumps(manifest))
            (prefix.parent / CURRENT).symlink_to(installed.name)
        return hidl

    return at


def smoke_checks(hidl: Hidl, directory: Path, settings: Path, **variables: str) -> list[str]:
    """The smoke checks of MPI's sanity that ReFrame lists with these settings."""
    program = Path(sys.executable).with_name("reframe")
    words = [program, "-C", settings, "-c", CHECKS / "mpi_sanity.py", "-t", "smoke", "-l", "--nocolor"]
    environment = hidl.environment | {"HOME": str(directory)} | variables
    listed = subprocess.run(
        words, env=environment, cwd=directory, capture_output=True, text=True, timeout=patience(120), check=False
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    return re.findall(r"^- (mpi_sanity %scale=\S+)", listed.stdout, re.MULTILINE)


@pytest.mark.deep
@pytest.mark.parametrize("site", RUNNING)
def test_the_settings_for_plain_reframe(hidl_at: Callable[[str], Hidl], tmp_path: Path, site: str) -> None:
    assert smoke_checks(hidl_at(site), tmp_path, CHECKS / "settings.py", HIDL_SITE=site)


@pytest.mark.parametrize("site", RUNNING)
def test_the_settings_that_validate_writes(
    hidl_at: Callable[[str], Hidl], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, site: str
) -> None:
    hidl = hidl_at(site)
    for name, value in hidl.environment.items():
        monkeypatch.setenv(name, value)
    settings = tmp_path / "settings.py"
    settings.write_text(
        prepare(ValidationRequest(CheckLocation(site=site, account="X"), tags=("smoke",))).settings_text()
    )

    assert smoke_checks(hidl, tmp_path, settings)
