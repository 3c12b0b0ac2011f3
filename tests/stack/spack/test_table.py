"""The table of sites and Spack: what Spack is shown of a machine that is not the site."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hidl_cli.stack.providers.spack.environment import environment
from hidl_cli.stack.providers.spack.host import Instance, Places
from tests.conftest import REPOSITORY
from tests.stack.spack.conftest import site, stack

#: Stands where Spack would, and fails with what it was shown for its first reason.
_SHOWN = """\
import platform, sys, yaml
spack = yaml.safe_load(open(sys.argv[sys.argv.index("-e") + 1] + "/spack.yaml"))["spack"]
sys.exit(f"==> Error: failed to concretize\\n  1. {platform.machine()} {list(spack['repos'])}")
"""


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """tools/spack_table.py"""
    specification = importlib.util.spec_from_file_location("spack_table", REPOSITORY / "tools" / "spack_table.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, "spack_table", module)  # its dataclasses ask for it
    specification.loader.exec_module(module)
    return module


def _standing_in(root: Path, program: str) -> Instance:
    (root / "bin").mkdir()
    (root / "bin" / "spack").write_text(f"#!{sys.executable}\n{program}")
    (root / "bin" / "spack").chmod(0o755)
    return Instance(root, "1.2.0", (1, 2))


def test_spack_is_shown_the_sites_processors_and_hidls_packages_first(
    table: ModuleType, where: Places, tmp_path: Path
) -> None:
    machine = site(node_types={"node": {"arch": "aarch64", "gpus": 0}})
    made = environment(machine, stack(), where, view=Path("view"), release=(1, 2))
    shown = table._answer(made, _standing_in(tmp_path, _SHOWN), table._machine(machine))
    assert shown == {"why": "aarch64 ['hidl', 'builtin']"}


def test_spack_has_its_time_of_a_processor_and_no_more(
    table: ModuleType, where: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "PATIENCE", 1)
    instance = _standing_in(tmp_path, "while True: pass")
    made = environment(site(), stack(), where, view=Path("view"), release=(1, 2))
    assert table._answer(made, instance, "x86_64")["why"].startswith("Spack found no answer within")
