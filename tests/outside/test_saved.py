"""Folders of outputs that people saved by hand: each file of ``saved.yaml`` is read right, whatever its name is; and
whatever is done to outputs, they are read, or what is wrong is told, file by file."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hidl_cli.errors import HidlError, InvalidInput, SchedulerUnreachable, UsageError
from hidl_cli.inputs.load import examine
from hidl_cli.inputs.overlay import at_path
from hidl_cli.site.checks import RULES
from hidl_cli.site.draft import SiteDraft, draft
from hidl_cli.site.outputs import survey_from
from hidl_cli.site.probes.survey import load_host, survey_recorded
from tests.site.recording import DIRECTORY as RECORDED

PLACE = Path(__file__).parent / "saved"
INDEX: Mapping[str, Mapping[str, Any]] = yaml.safe_load((PLACE.parent / "saved.yaml").read_text(encoding="utf-8"))
CORPUS = sorted(
    [*PLACE.iterdir(), *PLACE.parent.glob("*.txt"), *RECORDED.glob("*/*.txt")], key=lambda file: (file.name, str(file))
)


def folder(directory: Path, files: Mapping[str, str | bytes]) -> Path:
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return directory


def text_of(name: str) -> str:
    return (PLACE / name).read_text(encoding="utf-8")


def drafted(directory: Path) -> SiteDraft:
    """The draft, which `hidl site check` takes."""
    found, _ = survey_from(directory)
    made = draft(found, "it")
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "it.yaml")
        file.write_text(made.text, encoding="utf-8", newline="")
        assert examine(RULES, at_path("site", file)).problems == ()
    return made


def refused(directory: Path) -> list[str]:
    """What is wrong, a line each."""
    with pytest.raises(InvalidInput) as caught:
        survey_from(directory)
    return [problem.message for problem in caught.value.problems]


@pytest.mark.parametrize("named", ["as it is", "without a name that says anything"])
@pytest.mark.parametrize("name", INDEX)
def test_a_saved_output_is_read_right(config: Path, tmp_path: Path, name: str, named: str) -> None:
    file = name if named == "as it is" else "note"
    made = drafted(folder(tmp_path / "saved", {file: text_of(name)}))
    expected = INDEX[name]
    assert made.read == (f"{file}: {expected['read']}",)
    lines = [line.strip() for line in made.text.splitlines()]
    comments = " ".join(made.text.replace("#", " ").split())
    for one in expected["draft"]:
        line = one.replace(name, file)
        assert line.removeprefix("# ") in comments if line.startswith("#") else line in lines
    body = made.text.replace(file, "")
    assert [one for one in expected.get("not", ()) if one in body] == []
    if "open" in expected:
        assert [question.partition(":")[0] for question in made.open] == expected["open"]


def test_every_saved_output_is_in_the_index() -> None:
    assert {file.name for file in PLACE.iterdir()} == set(INDEX)


def test_what_is_open_stands_in_the_draft_with_the_command_that_tells_it(config: Path, tmp_path: Path) -> None:
    made = drafted(folder(tmp_path / "saved", {"sinfo.txt": text_of("sinfo_output.txt")}))
    words = " ".join(made.text.replace("#", " ").split())
    assert len(made.open) == 5
    assert [question for question in made.open if question not in words] == []
    assert "processor: not recorded; run `lscpu > lscpu.txt` on a compute node" in made.open


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r\n"),
        lambda text: f"[me@login1 ~]$ some command\n{text}[me@login1 ~]$ \n",
        lambda text: "".join(f"    {line}" if line.strip() else line for line in text.splitlines(keepends=True)),
        lambda text: f"\ufeff{text}",
        lambda text: f"\x1b[1m\x1b[0m{text}",
    ],
    ids=["line ends of Windows", "prompts", "indented", "byte order mark", "colours"],
)
@pytest.mark.parametrize("name", INDEX)
def test_how_it_was_saved_makes_no_difference(config: Path, tmp_path: Path, name: str, change: Any) -> None:
    made = drafted(folder(tmp_path / "saved", {name: change(text_of(name))}))
    assert made.read == (f"{name}: {INDEX[name]['read']}",)


def test_the_processor_of_a_node_stands_in_its_kind(config: Path, tmp_path: Path) -> None:
    names = ("pbsnodes-a.txt", "qstat-Qf.txt", "ibstat.txt")
    files = {name: text_of(name) for name in names}
    files["lscpu.txt"] = (
        text_of("lscpu.txt")
        .replace("CPU(s):                  64", "CPU(s):    48")
        .replace("Core(s) per socket:  16", "Core(s) per socket:  12")
    )
    made = drafted(folder(tmp_path / "saved", files))
    assert "cpu: 'Xeon Imaginary 9000'" in made.text
    assert "cores: 24" in made.text
    assert not [question for question in made.open if question.startswith(("processor", "nodes", "queues"))]


def test_a_processor_that_is_no_nodes_stands_in_none(config: Path, tmp_path: Path) -> None:
    names = ("scontrol-show-node.txt", "lscpu.txt")
    made = drafted(folder(tmp_path / "saved", {name: text_of(name) for name in names}))
    assert "the processor (Xeon Imaginary 9000) fits no kind of node and is left out" in made.remarks
    assert "cpu: null" in made.text


def test_two_files_that_differ_are_both_named(config: Path, tmp_path: Path) -> None:
    files = {
        "old.txt": text_of("sinfo_output.txt"),
        "sinfo.txt": text_of("sinfo_output.txt").replace("45:00", "50:00"),
        "a.txt": text_of("nvidia-smi-L.txt"),
        "b.txt": text_of("nvidia-smi.log"),
    }
    made = drafted(folder(tmp_path / "saved", files))
    assert "contradiction: max_wall of short: 2700 (old.txt), but 3000 (sinfo.txt)" in made.remarks
    assert [one for one in made.remarks if one.startswith("contradiction: a.txt") and "b.txt" in one]


def test_two_schedulers_are_both_named(config: Path, tmp_path: Path) -> None:
    files = {name: text_of(name) for name in ("sinfo_output.txt", "partitions.log", "qstat-q.txt")}
    made = drafted(folder(tmp_path / "saved", files))
    assert "contradiction: qstat-q.txt describes PBS, but this draft is for Slurm" in made.remarks


def test_outputs_of_one_scheduler_come_together(config: Path, tmp_path: Path) -> None:
    names = ("scontrol-show-node.txt", "partitions.log")
    made = drafted(folder(tmp_path / "saved", {name: text_of(name) for name in names}))
    assert "max_wall: '1-12:00:00'" in made.text  # of the partition
    assert "gpu_model: l4" in made.text  # of the node
    assert "limits unknown" not in made.text


FAULTY = {
    "sinfo.txt": (
        text_of("sinfo_output.txt").replace("45:00", "soon"),
        "line 5: expected a time in the column TIMELIMIT",
    ),
    "cut.txt": (text_of("sinfo_output.txt")[:-20], "line 7: expected "),
    "flux.txt": (
        text_of("flux.txt").replace("32 ", "3x "),
        "line 2: expected a number in the column NCORES, found `3x`",
    ),
    "pbs.txt": (text_of("pbsnodes-avSj.txt").replace("0/48", "0-48"), "line 4: expected mem, ncpus, nmics and ngpus"),
    "qstat.txt": (text_of("qstat-q.txt").replace("E R", "on "), "line 6: expected a queue, its limits"),
    "json.txt": ('{"pbs_version": "1", "nodes": {"a": \n', "line 2: expected JSON"),
    "rocm.txt": (text_of("rocm-smi.csv.txt").replace(",gfx90a\n", "\n", 1), "line 2: expected 6 values"),
    "xpu.txt": (text_of("xpu-smi.txt").replace("Device Name:", "Gerätename:", 1), "expected a `Device Name` for each"),
    "lscpu.txt": (text_of("lscpu.txt").replace("CPU(s): ", "Prozessoren: "), "expected a number after `CPU(s):`"),
    "bqueues.txt": (text_of("bqueues.txt") + "night\n", "expected a queue and its status in each row, found `night`"),
}


def test_all_that_is_wrong_is_told_at_once_file_by_file(tmp_path: Path) -> None:
    told = refused(folder(tmp_path / "saved", {name: text for name, (text, _) in FAULTY.items()}))
    assert [name for name, (_, words) in FAULTY.items() if not any(name in one and words in one for one in told)] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "found nothing"),
        (
            "bash: sinfo: command not found\n",
            "line 1: expected the output of a supported program, found `bash: sinfo",
        ),
        ("PARTICIÓN  DISP  LÍMITE\nlote  sí  1:00\n", "found `PARTICIÓN DISP LÍMITE`"),
        (b"\x7fELF\x00\x01" * 50, "expected the output of a supported program"),
    ],
    ids=["empty", "not there", "another language", "no text"],
)
def test_what_nobody_knows_is_refused_alone_and_told_beside_others(
    config: Path, tmp_path: Path, text: str | bytes, found: str
) -> None:
    (told,) = refused(folder(tmp_path / "alone", {"sinfo.txt": text}))
    assert told.startswith("sinfo.txt")
    assert found in told
    made = drafted(folder(tmp_path / "beside", {"sinfo.txt": text, "lscpu.txt": text_of("lscpu.txt")}))
    assert [one for one in made.remarks if one.startswith("not read: sinfo.txt") and found in one]


def test_a_library_of_ones_own_is_no_fact_of_a_site(tmp_path: Path) -> None:
    own = text_of("ucx_info-v.txt").replace("/opt/ucx", "${HOME}/mine")
    (told,) = refused(folder(tmp_path / "saved", {"ucx.txt": own}))
    assert "ucx_info -v: UCX 1.15.0 in ${HOME}/mine, possibly not the site's" in told


def test_a_folder_that_is_none_or_empty(tmp_path: Path) -> None:
    for directory in (tmp_path / "nowhere", folder(tmp_path / "empty", {})):
        with pytest.raises(UsageError):
            survey_from(directory)


def test_a_recording_with_another_commands_answer_is_refused(tmp_path: Path) -> None:
    shutil.copytree(RECORDED / "flux", tmp_path / "flux")
    resources = (tmp_path / "flux" / "flux-resource-list.txt").read_text()
    (tmp_path / "flux" / "flux-queue-list.txt").write_text(resources)
    (told,) = refused(tmp_path / "flux")
    assert told == (
        "flux-queue-list.txt line 1: expected the output of `flux queue list`, found the output of `flux resource list`"
    )


def test_a_table_of_resources_for_all_questions_to_flux(tmp_path: Path) -> None:
    """It ended in a KeyError once: probes read it as the table of queues, too."""
    host = load_host(folder(tmp_path / "saved", {"flux.txt": text_of("flux.txt")}))
    found = survey_recorded(host)
    assert found.batch is not None
    assert (found.batch.queues, len(found.batch.nodes)) == ((), 3)


TEXTS = [file.read_text(encoding="utf-8", errors="replace")[:20_000] for file in CORPUS]
NAMES = [file.name for file in CORPUS]


@st.composite
def mangled(draw: st.DrawFn) -> str:
    """An output with lines and columns dropped, doubled and in another order; or cut off."""
    lines = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)[:60]
    for _ in range(draw(st.integers(0, 3))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        words = lines[at].split(" ")
        column = draw(st.integers(0, len(words) - 1))
        what = draw(st.sampled_from(["drop", "double", "move", "word", "words", "cut", "join", "digits", "another"]))
        if what == "drop":
            del lines[at]
        elif what == "double":
            lines.insert(at, lines[at])
        elif what == "move":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines.pop(at))
        elif what == "word":
            lines[at] = " ".join(words[:column] + words[column + 1 :])
        elif what == "words":
            lines = [" ".join(one.split(" ")[::-1]) for one in lines]
        elif what == "cut":
            lines = [*lines[:at], lines[at][:column]]
        elif what == "join":
            lines[at] = lines[at].rstrip("\n")
        elif what == "digits":
            lines[at] = lines[at].replace("1", "9" * draw(st.sampled_from([1, 30, 5000]))).replace("0", "-")
        else:
            lines[at:at] = draw(st.sampled_from(TEXTS)).splitlines(keepends=True)[:5]
    return "".join(lines)


def outcome(directory: Path) -> None:
    """A draft in order, or an error in which each problem names its file."""
    try:
        drafted(directory)
    except (InvalidInput, UsageError, SchedulerUnreachable) as error:
        problems: Sequence[Any] = error.problems if isinstance(error, InvalidInput) else ()
        names = [file.name for file in directory.iterdir()]
        assert all(any(problem.message.startswith(name) for name in names) for problem in problems)


many = settings(max_examples=300, deadline=None)


@many
@example({"bhosts-gpu.txt": f"Server: node{'9' * 5000}\n    server_state = Active\n    default_queue = workq\n"})
@given(st.dictionaries(st.sampled_from(NAMES), mangled(), min_size=1, max_size=4))
def test_whatever_outputs_hold_they_are_read_or_what_is_wrong_is_told(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as place:
        outcome(folder(Path(place, "saved"), files))


@many
@given(st.dictionaries(st.sampled_from(NAMES), mangled(), min_size=1, max_size=4))
def test_whatever_a_recording_holds_it_is_read_or_what_is_wrong_is_told(files: dict[str, str]) -> None:
    programs = {"-".join(name.removesuffix(".txt").split("-")[:count]) for name in files for count in (1, 2)}
    about = {
        "hostname": "login1",
        "environment": {"LMOD_CMD": "/opt/lmod"},
        "programs": {name: f"/usr/bin/{name}" for name in programs},
        "machine": {
            "arch": "x86_64",
            "cpu": None,
            "sockets": 1,
            "cores": 4,
            "threads_per_core": 1,
            "memory_gib": 8.0,
        },
    }
    with tempfile.TemporaryDirectory() as place:
        outcome(folder(Path(place, "saved"), {**files, "host.json": json.dumps(about)}))


@many
@given(st.dictionaries(st.sampled_from([name.partition("-")[0] + ".txt" for name in NAMES]), mangled(), min_size=1))
def test_one_file_for_all_questions_ends_in_no_other_error(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as place, suppress(HidlError):
        survey_recorded(load_host(folder(Path(place, "saved"), files)))


HOSTILE = {
    "blank lines": "\n" * 2_000_000,
    "dashes": "-" * 1_000_000 + "x",
    "spaces": "Architecture: x\nCPU(s):" + " " * 2_000_000 + "x\n",
    "a card": "NVIDIA A, 8.0, 1" + "1111, 8.0, 1111" * 20_000 + "x",
    "titles": "PARTITION AVAIL " * 50_000 + "\n" + "a " * 40_000 + "\n",
    "a directory": "--- /a\n" + "/a" + "-" * 1_000_000 + "x\n",
    "a GPU": "GPU[0]\t: Card series: x" + " " * 1_000_000 + "y\n" * 2,
    "fields": "NodeName=a " + "x=1 " * 300_000 + "\n",
    "hosts": "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST\na up 1:00 1 idle a[" + "1," * 300_000 + "1]\n",
    "product": "Intel\n" + "==============NVSMI LOG==============\n" + "GPU 00000000:17:00.0\n" * 20_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_was_made_to_take_long_takes_seconds(config: Path, tmp_path: Path, name: str) -> None:
    directory = folder(tmp_path / "saved", {"text": HOSTILE[name]})
    begin = time.process_time()
    outcome(directory)
    assert time.process_time() - begin < 10
