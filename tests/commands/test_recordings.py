"""``hidl doctor --collect`` and ``--from``, ``hidl site new --from``: a machine that somebody else looks into."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from tests.conftest import Hidl
from tests.site.recording import DIRECTORY

CONFIG = "ClusterName = hill\nSLURM_VERSION = 23.02.7\nSelectType = select/cons_tres\n"
NODE = (
    "NodeName=node1 Arch=x86_64 CPUTot=8 RealMemory=4000 Sockets=1 CoresPerSocket=8 ThreadsPerCore=1 "
    "State=IDLE Partitions=batch\n"
)
PARTITION = "PartitionName=batch Default=YES AllowAccounts=ALL MaxTime=2-00:00:00 Nodes=node1 State=UP TotalNodes=1\n"


@pytest.fixture
def login(hidl: Hidl, tmp_path: Path) -> Hidl:
    """hidl on a login host whose Slurm answers from files."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("config", CONFIG), ("node", NODE), ("partition", PARTITION)):
        (tmp_path / f"{name}.out").write_text(text)
    scontrol = programs / "scontrol"
    scontrol.write_text(f'#!/bin/sh\nfor word; do :; done\nexec cat "{tmp_path}/$word.out"\n')
    scontrol.chmod(0o755)
    hidl.environment["PATH"] = f"{programs}:{hidl.environment['PATH']}"
    hidl.environment["USER"] = "wilhelmina"
    return hidl


def test_a_site_is_drafted_from_what_was_collected_elsewhere(login: Hidl, hidl: Hidl, tmp_path: Path) -> None:
    recording = tmp_path / "recording"
    files = login.json("doctor", "--collect", str(recording), "--site", "local")["files"]
    assert {"host.json", "scontrol-show-config.txt", "scontrol-oneliner-show-node.txt"} <= {*files}
    assert "wilhelmina" not in "".join(file.read_text() for file in recording.rglob("*") if file.is_file())

    (tmp_path / "bin" / "scontrol").unlink()
    drafted = hidl("site", "new", "--from", str(recording), "--output", "-")
    assert drafted.returncode == 0, drafted.stderr
    site = yaml.safe_load(drafted.stdout)
    assert (site["name"], site["scheduler"], site["partitions"]["batch"]["max_wall"]) == ("hill", "slurm", "2-00:00:00")


def test_a_recorded_machine_is_examined(hidl: Hidl) -> None:
    done = hidl("doctor", "--from", str(DIRECTORY / "ampere"), "--site", "frontera", "--json")
    document = json.loads(done.stdout)
    assert (document["host"], document["site"]) == ("login2.ampere.example.edu", "frontera")
    assert any("not part of site frontera" in sentence for sentence in document["unknown"])


def saved_by_hand(directory: Path, name: str) -> Path:
    """A folder with one output, in a file whose name says nothing."""
    directory.mkdir()
    text = Path(__file__).parents[1].joinpath("outside", "saved", name).read_text()
    (directory / "note").write_text(text)
    return directory


@pytest.mark.parametrize(
    ("name", "unknown"),
    [("partitions.log", True), ("sinfo_output.txt", True), ("scontrol-show-node.txt", False)],
    ids=["scontrol", "sinfo", "one node, which does not list all partitions"],
)
def test_a_site_is_checked_against_outputs_that_were_saved_by_hand(
    hidl: Hidl, tmp_path: Path, name: str, unknown: bool
) -> None:
    done = hidl("doctor", "--from", str(saved_by_hand(tmp_path / "saved", name)), "--site", "frontera", "--json")
    findings = json.loads(done.stdout)["findings"]
    assert ("HD091" in [finding["rule"] for finding in findings]) is unknown
    assert done.returncode == (4 if unknown else 0)


def test_saved_outputs_of_another_scheduler_are_refused(hidl: Hidl, tmp_path: Path) -> None:
    done = hidl("doctor", "--from", str(saved_by_hand(tmp_path / "saved", "bqueues-l.txt")), "--site", "frontera")
    assert done.returncode == 2
    assert "contains output of LSF, but the scheduler of site frontera is slurm" in " ".join(done.stderr.split())


def test_a_recording_of_no_known_site_needs_its_name(hidl: Hidl) -> None:
    done = hidl("doctor", "--from", str(DIRECTORY / "hetero"))
    assert done.returncode == 2
    assert "no site matches the machine in" in done.stderr
    assert "hidl site new --from" in done.stderr


@pytest.mark.parametrize("option", ["--collect", "--from"])
def test_they_stand_alone(hidl: Hidl, tmp_path: Path, option: str) -> None:
    done = hidl("doctor", option, str(tmp_path / "x"), "--fix", "--nodes", "2")
    assert done.returncode == 2
    assert "cannot be combined with --nodes, --fix" in done.stderr
    assert not (tmp_path / "x").exists()
