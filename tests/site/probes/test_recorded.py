"""A machine's answers written to a directory, without names, and read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput, UsageError
from hidl_cli.site.draft import draft
from hidl_cli.site.machine import Machine
from hidl_cli.site.probes.survey import Anonymizer, RecordedHost, RecordingHost, load_host, survey, survey_recorded
from tests.site.recording import DIRECTORY, SYSTEMS, recorded
from tests.site.recording import RecordedHost as Answering

MACHINE = Machine("x86_64", "EPYC", 2, 64, 1, 251.4)
PARTITION = "PartitionName=batch AllowAccounts=chem123,phys7 AllowGroups=staff DenyAccounts=(null) Nodes=node1\n"
NODE = (
    "NodeName=node1 NodeAddr=10.4.5.6 NodeHostName=node1 Owner=N/A "
    "Reason=disk of bob [bob@2026-11-02T10:00:00] Comment=ask carol.k@hpc.uni.ac.uk\n"
)
PERSONAL = ("alice", "bob", "carol", "uni", "10.4.5.6", "chem123", "phys7", "bio42", "staff", "b8:ce", "hunter2")
CONFIG = "ClusterName = big\nSlurmctldHost[0] = alices-box(10.4.5.6)\nSLURM_VERSION = 23.02.7\n"


def site() -> Answering:
    """A host that tells a lot about people."""
    return Answering(
        DIRECTORY / "none",
        "alices-box.hpc.uni.ac.uk",
        {
            "USER": "alice",
            "HOME": "/users/chem/alice",
            "PATH": "/users/chem/alice/bin:/usr/bin",
            "HIDL_INDEX": "https://alice:hunter2@pip.uni.ac.uk/simple",
            "SLURM_JWT_TOKEN": "hunter2",
            "EDITOR": "alice-mode",
        },
        {name: f"/usr/bin/{name}" for name in ("scontrol", "sacctmgr", "mpiexec", "ibstat")},
        answers={
            "scontrol show config": CONFIG,
            "scontrol --oneliner show node": NODE,
            "scontrol --oneliner show partition": PARTITION,
            "sacctmgr --noheader --parsable2 show user alice format=DefaultAccount": "bio42\n",
            "mpiexec --version": "HYDRA build details:\n    Version: 19.0.8.324\n",
            "ibstat": "CA 'mlx5_0'\n    Node GUID: 0xb8cef6030012ab34\n    link addr b8:ce:f6:03:00:12\n",
        },
    )


def written(tmp_path: Path) -> Path:
    host = RecordingHost(site())
    survey(host, MACHINE)
    for question in ("sacctmgr --noheader --parsable2 show user alice format=DefaultAccount", "ibstat"):
        host.ask(*question.split())
    host.write(tmp_path / "recording", MACHINE)
    return tmp_path / "recording"


def test_no_name_is_left(tmp_path: Path) -> None:
    place = written(tmp_path)
    files = [file for file in place.rglob("*") if file.is_file()]
    everything = "\n".join([*map(str, files), *(file.read_text() for file in files)]).replace(str(tmp_path), "")
    assert [name for name in PERSONAL if name in everything] == []
    assert "EDITOR" not in everything


def test_what_is_no_name_stays(tmp_path: Path) -> None:
    place = written(tmp_path)
    assert "Version: 19.0.8.324" in (place / "mpiexec-version.txt").read_text()
    assert "ClusterName = big" in (place / "scontrol-show-config.txt").read_text()
    assert "AllowAccounts=account1,account2" in (place / "scontrol-oneliner-show-partition.txt").read_text()


def test_the_question_with_a_name_is_found_again(tmp_path: Path) -> None:
    host = load_host(written(tmp_path))
    user = host.environment["USER"]
    assert host.ask("sacctmgr", "--noheader", "--parsable2", "show", "user", user, "format=DefaultAccount") == (
        "account3\n"
    )


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_recording_of_a_recording_gives_the_same_draft(system: str, tmp_path: Path) -> None:
    before = recorded(system)
    assert before.machine is not None
    host = RecordingHost(before)
    expected = draft(survey(host, before.machine), "it").text
    host.write(tmp_path / "recording", before.machine)
    again = load_host(tmp_path / "recording")
    answers = {(file.stem.partition("-")[0], file.name): file.read_text() for file in before.directory.glob("*.txt")}
    names = Anonymizer.of(before, answers)
    drafted = draft(survey_recorded(again), "it").text
    assert drafted.replace("\\", "") == names.clean(expected.replace("\\", ""))  # patterns have backslashes


def test_failures_are_recorded(tmp_path: Path) -> None:
    host = RecordingHost(RecordedHost(DIRECTORY / "none", failures=("`lsid` failed: timeout",)))
    host.write(tmp_path / "recording", MACHINE)
    assert load_host(tmp_path / "recording").failures == ("`lsid` failed: timeout",)


def test_a_directory_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError, match="is not empty"):
        RecordingHost(site()).write(tmp_path, MACHINE)
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]


def test_outputs_collected_by_hand_are_enough(tmp_path: Path) -> None:
    for name in ("lsid", "bqueues-l", "bhosts-w", "lshosts-w"):
        (tmp_path / f"{name}.txt").write_bytes((DIRECTORY / "summit" / f"{name}.txt").read_bytes())
    found = survey_recorded(load_host(tmp_path))
    assert found.batch is not None
    assert found.batch.scheduler == "lsf"


def test_one_file_for_all_questions_to_a_program(tmp_path: Path) -> None:
    (tmp_path / "ompi_info.txt").write_text("Open MPI v5.0.11\n")
    host = load_host(tmp_path)
    assert host.which("ompi_info") == "/usr/bin/ompi_info"
    assert host.ask("ompi_info", "--version") == "Open MPI v5.0.11\n"
    assert host.ask("nvidia-smi") is None


def test_outputs_that_do_not_say_what_machine_it_is(tmp_path: Path) -> None:
    (tmp_path / "ompi_info.txt").write_text("Open MPI v5.0.11\n")
    with pytest.raises(InvalidInput, match="does not describe a machine"):
        survey_recorded(load_host(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '"x"',
        "{}",
        '{"hostname": 1}',
        '{"hostname": "a", "machine": {"x": 1}}',
        '{"hostname": "a", "environment": [1]}',
        "\udcff",
    ],
)
def test_a_garbled_description_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=r"host\.json cannot be read"):
        load_host(tmp_path)


def test_no_recording_at_all(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains no recorded outputs"):
        load_host(tmp_path / "nowhere")


def test_the_description_has_a_schema(tmp_path: Path) -> None:
    about = json.loads((written(tmp_path) / "host.json").read_text())
    assert (about["schema"], about["hostname"]) == ("hidl.host/1", "host.example.org")
