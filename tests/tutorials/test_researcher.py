"""The tutorial "researcher" does what it says: every command is run, and what it prints is what stands on the page.

After a change that is meant: HIDL_WRITE_GOLDEN=1 pytest tests/tutorials, and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials.pages import done, each_command, holds
from tests.tutorials.tutorial import Command

pytestmark = pytest.mark.deep  # its commands are those of tests/runs; the other two tutorials are done each time


@pytest.fixture(scope="module")
def researcher(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return done("researcher", tmp_path_factory.mktemp("researcher"))


@each_command("researcher")
def test_a_researchers_program(command: Command, researcher: tuple[Path, list[str]]) -> None:
    holds(command, researcher)
