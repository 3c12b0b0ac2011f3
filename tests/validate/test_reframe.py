"""How hidl starts ReFrame."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hidl_cli.errors import HidlError
from hidl_cli.quoting import sh
from hidl_cli.validate import reframe


@pytest.mark.parametrize("has_script", [True, False])
def test_nothing_is_imported_from_the_directory_that_it_is_called_in(
    has_script: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_script:
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nexec {sh(sys.executable)} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
    here = tmp_path / "here"
    here.mkdir()
    (here / "json.py").write_text("raise SystemExit('imported')")
    started = subprocess.run(
        reframe.reframe_command("--version"), cwd=here, capture_output=True, text=True, check=False
    )
    assert (started.returncode, started.stderr) == (0, "")


def test_the_reason_why_checks_are_not_listed_contains_no_part_of_a_secret(tmp_path: Path) -> None:
    settings = tmp_path / "settings.py"
    printed = f"connect --token R3frameSecret9xK2f\n{'step ' * 297}"
    settings.write_text(f"import os\nsite_configuration = {{}}\nprint({printed!r}, flush=True)\nos._exit(3)\n")
    with pytest.raises(HidlError, match="ReFrame cannot list its checks: ") as caught:
        reframe.list_cases(reframe.Selection(settings, "local"), tmp_path)
    assert caught.value.message.endswith("step step")
    assert "cret9" not in caught.value.message
