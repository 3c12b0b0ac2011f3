"""What stands in the files of a cluster."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hidl_twin import TEMPLATES, files, packages
from hidl_twin.layout import Layout
from hidl_twin.settings import Settings
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.templates import render_script

GOLDEN = Path(__file__).with_name("slurm.golden.conf")
SETTINGS = Settings(nodes=3, cpus_per_node=4, subnet=5)

OF_A_PLAIN_NODE = {"directory": "/cluster", "modulefiles": None, "grafts": {}}

needs_ssh_keygen = pytest.mark.skipif("openssh-client" in packages.missing(accounting=False), reason="no ssh-keygen")


@pytest.fixture
def layout(place: Path) -> Layout:
    found = Layout.of(place / "cluster")
    found.make()
    return found


@needs_ssh_keygen
def test_slurm_conf_is_the_golden_one(layout: Layout) -> None:
    files.write(layout, SETTINGS, SETTINGS.dress())
    text = layout.conf.read_text().replace(str(layout.directory), "/cluster")
    text = text.replace(f"SlurmctldHost={os.uname().nodename.split('.')[0]}(", "SlurmctldHost=host(")
    if os.environ.get("HIDL_WRITE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


@needs_ssh_keygen
def test_what_is_written_again_has_not_changed(layout: Layout) -> None:
    files.write(layout, SETTINGS, SETTINGS.dress())
    assert files.write(layout, SETTINGS, SETTINGS.dress()) == frozenset()


@needs_ssh_keygen
@pytest.mark.parametrize("change", [{"accounting": False}, {"enforce_limits": False}])
def test_what_can_be_switched_on_a_living_cluster_changes_slurm_conf_alone(
    layout: Layout, change: dict[str, bool]
) -> None:
    files.write(layout, SETTINGS, SETTINGS.dress())
    assert files.write(layout, SETTINGS.changed(**change), SETTINGS.dress()) == {"etc/slurm.conf"}


@needs_ssh_keygen
def test_only_root_reads_what_is_secret(layout: Layout) -> None:
    files.write(layout, SETTINGS, SETTINGS.dress())
    readable = {
        str(path.relative_to(layout.directory))
        for path in layout.directory.rglob("*")
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) & 0o077
    }
    public = {"cluster.json", "etc/slurm.conf", "etc/hosts", "etc/neighbours", "etc/sshd_config", "etc/node.sh"}
    assert readable == public | {f"ssh/{name}" for name in ("config", "known_hosts", "id.pub", "host_key.pub")}


@needs_ssh_keygen
def test_of_shared_directories_within_each_other_the_outer_one_is_mounted(layout: Layout) -> None:
    files.write(
        layout, replace(SETTINGS, shares=("/tmp/a", "/tmp/a/b", "/tmp/ab", "/dev/shm/c", "/home/me")), SETTINGS.dress()
    )
    lines = layout["etc/node.sh"].read_text().splitlines()
    own = [line.split() for line in lines if line.startswith("own /")]
    mounted = {
        place: [share for share in shares if not share.startswith(str(layout.directory))]
        for _, place, _, *shares in own
    }
    assert mounted == {"/tmp": ["/tmp/a", "/tmp/ab"], "/dev/shm": ["/dev/shm/c"], "/run": []}


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1), max_size=3))
def test_whatever_a_shared_directory_is_called_it_stays_one_word_of_the_script(shares: list[str]) -> None:
    places = [{"path": "/tmp", "mode": "1777", "shared": shares}]
    script = render_script("node.sh.j2", {**OF_A_PLAIN_NODE, "places": places}, TEMPLATES)
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    call = script[script.index("\nown /tmp") : script.index("\nmkdir -p /run/sshd")]
    assert shlex.split(call) == ["own", "/tmp", "1777", *shares]


def test_a_place_that_each_node_has_for_itself_is_distinguished_from_one_that_is_seen_anyway() -> None:
    paths = ["/tmp/a", "/dev/shm/a", "/run/user/0", "/tmp", "/home/tmp/a", "/tmpfs/a"]
    assert [path for path in paths if files.is_private(Path(path))] == ["/tmp/a", "/dev/shm/a", "/run/user/0"]
