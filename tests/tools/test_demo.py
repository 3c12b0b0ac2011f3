"""``make demo``: what it tells hidl."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from hidl_cli.commands.arguments import limit_in_seconds
from tests.conftest import REPOSITORY


@pytest.mark.parametrize(("gone", "least", "most"), [(0, 465, 470), (65, 400, 405), (470, 120, 120)])
def test_the_study_ends_within_the_time_of_the_demo(tmp_path: Path, gone: int, least: int, most: int) -> None:
    """``gone``: seconds that the installation took."""
    said = tmp_path / "said"
    stand_in = tmp_path / "hidl"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {said}\n')
    stand_in.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DEMO_BEGAN": str(int(time.time()) - gone),
        "DEMO_SECONDS": "480",
    }
    subprocess.run([REPOSITORY / "tools" / "demo"], env=environment, check=True)
    words = said.read_text().splitlines()
    seconds = limit_in_seconds(words[words.index("--time") + 1])
    assert seconds is not None
    assert least <= seconds <= most
