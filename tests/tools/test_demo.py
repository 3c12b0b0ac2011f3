"""``make demo``: what it tells hidl."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from hidl_cli.commands.arguments import limit_in_seconds
from tests.conftest import REPOSITORY


@pytest.mark.parametrize("gone", [0, 65, 470])
def test_the_study_ends_within_the_time_of_the_demo(tmp_path: Path, gone: int) -> None:
    """``gone``: seconds that the installation took; the verdict takes ten, and the study is given two minutes."""
    said = tmp_path / "said"
    stand_in = tmp_path / "hidl"
    stand_in.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >> {said}\n')
    stand_in.chmod(0o755)
    began = int(time.time()) - gone
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "DEMO_BEGAN": str(began),
        "DEMO_SECONDS": "480",
    }
    subprocess.run([REPOSITORY / "tools" / "demo"], env=environment, check=True)
    ended = int(time.time())
    words = said.read_text().splitlines()
    seconds = limit_in_seconds(words[words.index("--time") + 1])
    assert seconds is not None
    assert max(470 - (ended - began), 120) <= seconds <= max(470 - gone, 120)
