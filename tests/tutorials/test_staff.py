"""The tutorial "staff" does what it says: every command is run, and what it prints is what stands on the page.

After a change that is meant: HIDL_WRITE_GOLDEN=1 pytest tests/tutorials, and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.cluster import LivingCluster
from tests.tutorials.pages import done, each_command, holds
from tests.tutorials.tutorial import Command

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def staff(tmp_path_factory: pytest.TempPathFactory, cluster: LivingCluster) -> tuple[Path, list[str]]:
    home = tmp_path_factory.mktemp("staff")
    place = home / ".local" / "state" / "hidl"
    place.mkdir(parents=True)
    (place / "cluster").symlink_to(cluster.directory)  # `hidl cluster up` finds the session's
    return done("staff", home)


@pytest.mark.deep
@each_command("staff")
def test_a_clusters_staff(command: Command, cluster: LivingCluster, staff: tuple[Path, list[str]]) -> None:
    holds(command, staff)
