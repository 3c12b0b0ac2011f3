"""A run's capsule, replayed on this machine: the same, another, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.analysis.changes import compare
from hidl_cli.capsule import Replayed, read
from hidl_cli.stack.lock import parse
from tests.analysis.sampled import one_run
from tests.cluster.cluster import LivingCluster
from tests.conftest import REPOSITORY, Hidl

#: Its rate is what the file beside it says, so that a replay finds the same machine or a slower one.
PROGRAM = """
import pathlib, sys
from mpi4py import MPI
speed = float(pathlib.Path(__file__).with_name("speed").read_text())
if MPI.COMM_WORLD.rank == 0:
    noise = (1, 1.002, 0.998, 1.001, 0.999, 1.0005)[int(sys.argv[1]) - 1]
    sys.stdout.write(f"rate: {speed * noise} op/s\\n")
"""
WORKLOAD: dict[str, Any] = {
    "program": {
        "command": ["python", "program.py", "1"],
        "patterns": [{"pattern": "rate: (?P<rate>[0-9.]+)"}],
    },
    "metrics": {"rate": {"unit": "op/s", "better": "higher"}},
}


@pytest.fixture
def hidl(hidl_with: Callable[..., Hidl], tmp_path: Path) -> Hidl:
    hidl = hidl_with("mpi")
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "speed").write_text("100")
    program = {**WORKLOAD["program"], "command": ["python", str(tmp_path / "program.py"), "1"]}
    hidl.add_workload("paced", "toy.py", **{**WORKLOAD, "program": program})
    return hidl


@pytest.fixture
def capsule(hidl: Hidl, tmp_path: Path) -> Path:
    """The capsule of a run of six repetitions on two ranks."""
    run = hidl.json("run", "paced", "--ranks-per-node", "2", "--repeat", "6")["run"]
    file = tmp_path / "paced.capsule"
    made = hidl.json("capsule", run, "--output", str(file))
    assert (made["run"], made["file"]) == (run, str(file))
    assert [Path(each["path"]).name for each in made["inputs"]] == ["program.py"]
    return file


def test_the_same_machine_gives_the_same(hidl: Hidl, capsule: Path) -> None:
    found = hidl.json("replay", str(capsule), "--yes")
    assert (found["outcome"], found["answer"], found["changed"]) == ("same", "same within noise", [])
    (rate,) = found["differences"]
    assert (rate["count_a"], rate["count_b"]) == (6, 6)
    kept = json.loads((hidl.runs / found["replay"] / "replay.json").read_text())
    assert kept["answer"] == "same within noise"


@pytest.mark.parametrize(("count", "answer"), [(4, "inconclusive"), (6, "differs: score on 2 rank(s) +100.0%")])
def test_a_metric_without_a_direction_is_not_the_same_unless_it_is(count: int, answer: str) -> None:
    before, now = (one_run([level] * count, metric="score", better=None) for level in (1.0, 2.0))
    before += one_run([5.0] * 6)
    now += one_run([5.0] * 6)
    assert Replayed(compare(before, now), ()).answer == answer


def test_the_answer_names_the_point_that_differs() -> None:
    before, now = (
        [
            replace(sample, series=f"batch {batch}", parameters={"batch": batch}, point={"batch": batch})
            for batch, level in zip((1, 2), levels, strict=True)
            for sample in one_run([level] * 6, metric="score", better=None)
        ]
        for levels in ((1.0, 1.0), (1.0, 2.0))
    )
    assert Replayed(compare(before, now), ()).answer == "differs: score (batch=2) on 2 rank(s) +100.0%"


@pytest.mark.deep
def test_a_slower_machine_is_named_with_how_much(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    (tmp_path / "speed").write_text("80")
    completed = hidl("replay", str(capsule), "--yes")
    assert completed.returncode == 10, completed.stderr
    assert "differs: rate on 2 rank(s) -20.0%" in completed.stdout
    assert "changed: nothing that was recorded" in completed.stdout


@pytest.mark.deep
def test_a_fresh_home_installs_by_the_lock_and_replays(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    home = {f"XDG_{name}_HOME": str(tmp_path / "fresh" / name.lower()) for name in ("CONFIG", "STATE", "DATA", "CACHE")}
    completed = hidl("replay", str(capsule), "--yes", "--json", **home)
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout)["outcome"] == "same"
    (manifest,) = (tmp_path / "fresh" / "data").rglob("manifest.json")
    with zipfile.ZipFile(capsule) as archive:
        lock = json.loads(archive.read("run/plan.json"))["lock"]
    assert json.loads(manifest.read_text())["lock"]["digest"] == lock
    assert "replays" in manifest.parts  # what the user installs for themselves is not touched


def test_nothing_runs_unasked(hidl: Hidl, capsule: Path) -> None:
    before = sorted(hidl.runs.iterdir())
    completed = hidl("replay", str(capsule))
    assert completed.returncode == 2
    assert "a replay installs the capsule's packages and runs its program" in completed.stderr
    completed = hidl("replay", str(capsule), "--dry-run")
    assert completed.returncode == 0
    assert "program.py" in completed.stdout
    assert sorted(hidl.runs.iterdir()) == before


def test_the_commands_shown_before_consent_are_those_that_would_run(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    held = read(capsule)
    plan = json.loads(held.text("run/plan.json"))
    plan["workload"]["program"]["command"] = ["touch", str(tmp_path / "pwned")]  # the steps still show the old one
    hostile = tmp_path / "hostile.capsule"
    members = {**held.members, "run/plan.json": json.dumps(plan).encode()}
    hostile.write_bytes(replace(held, members=members).to_bytes())
    completed = hidl("replay", str(hostile))
    assert completed.returncode == 2
    assert f"touch {tmp_path / 'pwned'}" in completed.stderr
    assert "program.py" not in completed.stderr
    assert not (tmp_path / "pwned").exists()


@pytest.mark.deep
def test_changed_and_missing_inputs_are_named(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(f"{PROGRAM}\n# later\n")
    completed = hidl("replay", str(capsule), "--yes")
    assert completed.returncode == 4
    assert f"{tmp_path / 'program.py'}: content differs" in completed.stderr
    assert hidl("replay", str(capsule), "--yes", "--changed-inputs").returncode == 0
    (tmp_path / "program.py").unlink()
    completed = hidl("replay", str(capsule), "--yes")
    assert (completed.returncode, "program.py: not found" in completed.stderr) == (4, True)


@pytest.mark.deep
def test_a_lock_for_another_machine_is_refused(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    held = read(capsule)
    text = (
        held.text("lock.txt").replace("# platform: linux-", "# platform: solaris-").replace("sha256:", "sha256:0000", 2)
    )
    text = re.sub("sha256:0000([0-9a-f]{60})[0-9a-f]{4}", r"sha256:0000\1", text.replace("sha256:0000", "sha256:", 1))
    name = held.lock_name.replace("linux-", "solaris-")
    plan = json.loads(held.text("run/plan.json"))
    plan["lock"] = parse(text, capsule).digest
    members = {**held.members, "lock.txt": text.encode(), "run/plan.json": json.dumps(plan).encode()}
    other = tmp_path / "other.capsule"
    other.write_bytes(replace(held, members=members, lock_name=name).to_bytes())
    completed = hidl("replay", str(other), "--yes")
    assert completed.returncode == 4, completed.stderr
    assert f"lockfile {name} of the capsule cannot be used" in completed.stderr
    other.write_bytes(replace(held, members={**members, "lock.txt": held.members["lock.txt"]}).to_bytes())
    completed = hidl("replay", str(other), "--yes")
    assert (completed.returncode, "does not match the run's plan" in completed.stderr) == (3, True)


@pytest.mark.deep
def test_what_a_study_was_is_asked_for_again(hidl: Hidl, tmp_path: Path) -> None:
    scaling = {"metric": "rate", "kind": "weak", "target": 0.4}
    program = {**WORKLOAD["program"], "command": ["python", str(tmp_path / "program.py"), "1"]}
    hidl.add_workload("study", "toy.py", **{**WORKLOAD, "program": program, "scaling": scaling})
    hidl("run", "study", "--scale", "1,2", "--repeat", "3", "--target", "0.3", "--precision", "90%", "--threads", "1")
    (run,) = (each.name for each in hidl.runs.iterdir())
    file = tmp_path / "study.capsule"
    assert hidl("run", "capsule", run, "-o", str(file)).returncode == 0
    first = json.loads((hidl.runs / run / "plan.json").read_text())
    again = json.loads(hidl("replay", str(file), "--dry-run", "--json").stdout)["plan"]
    kept = "unit target baseline until_settled precision parameters workload lock mpi tuning"
    for key in kept.split():
        assert again[key] == first[key], key
    assert [step["launch"] for step in again["steps"]] == [step["launch"] for step in first["steps"]]


@pytest.mark.deep
def test_python_does_what_the_command_line_does(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    program = tmp_path / "replays.py"
    program.write_text(
        f"import hidl_cli.api as hidl\nmade = hidl.capsule(None, {str(tmp_path / 'two.capsule')!r})\n"
        "found = hidl.replay(made)\nprint(found.outcome, '|', found.answer)\n"
    )
    environment = {**hidl.environment, "PYTHONPATH": str(REPOSITORY)}
    said = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True).stdout
    assert said == "same | same within noise\n"


def test_an_input_that_an_older_file_replaced_is_not_the_run_s_own(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("of the run")
    older = tmp_path / "older"
    older.write_text("another!!!")
    os.utime(older, (1e9, 1e9))
    run = run_json(hidl, "--", "cat", str(tmp_path / "input"))["run"]
    older.replace(tmp_path / "input")
    made = hidl.json("capsule", run, "-o", str(tmp_path / "a.capsule"))
    (data,) = made["inputs"]
    assert (data["modified"], data["sha256"]) == (True, hashlib.sha256(b"of the run").hexdigest())
    completed = hidl("replay", str(tmp_path / "a.capsule"), "--yes")
    assert (completed.returncode, "input: content differs" in completed.stderr) == (4, True)

    (hidl.runs / run / "inputs.json").unlink()  # as hidl 0.1 left it
    (data,) = hidl.json("capsule", run, "-o", str(tmp_path / "b.capsule"))["inputs"]
    assert (data["modified"], data["sha256"]) == (True, "")
    completed = hidl("replay", str(tmp_path / "b.capsule"), "--yes")
    assert (completed.returncode, "so the original content is unknown" in completed.stderr) == (4, True)


def test_a_capsule_holds_the_recipe_and_the_site_of_the_run(hidl: Hidl, tmp_path: Path) -> None:
    recipe = hidl.config / "stacks" / "mpi.yaml"
    site = hidl.config / "sites" / "local.yaml"
    run = run_json(hidl, "--", "true")["run"]
    before = tmp_path / "before.capsule"
    hidl("capsule", run, "-o", str(before))
    for file, shipped in ((recipe, "recipes/stacks/mpi.yaml"), (site, "site_configs/local.yaml")):
        file.parent.mkdir(parents=True, exist_ok=True)
        text = (REPOSITORY / shipped).read_text()
        file.write_text(re.sub(r"(?m)^title:.*$", "title: edited after the run", text).replace("4.1", "4.0"))
    after = tmp_path / "after.capsule"
    made = hidl("capsule", run, "-o", str(after))
    assert made.returncode == 0, made.stderr
    assert "edited after the run" not in b"".join(members(after).values()).decode()
    assert members(after) == members(before)
    assert hidl("replay", str(after), "--dry-run").returncode == 0


def members(capsule: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(capsule) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def run_json(hidl: Hidl, *arguments: str) -> Any:
    completed = hidl("run", "--json", "--no-mpi", *arguments)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return json.loads(completed.stdout)


SECRET_PROGRAM = """
import os, pathlib, sys
if os.environ["RANK"] == "0":
    print("arguments", sys.argv[1:], flush=True)
    pathlib.Path(__file__).with_name("seen").write_text(repr(sys.argv[1:]))
"""


def test_hidden_words_are_listed_and_a_replay_gets_them_or_refuses(hidl: Hidl, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text(SECRET_PROGRAM)
    words = ["--key", "{token}", "--hf-token", "hf_X1", "--password", "hf_Y1", "--pad_token_id=0"]
    run = run_json(hidl, "--set", "token=hf_SECRET", "--", "python", str(tmp_path / "secret.py"), *words)
    file = tmp_path / "secret.capsule"
    made = hidl("capsule", run["run"], "-o", str(file))
    assert made.returncode == 0, made.stderr
    assert "a replay requires these redacted values: HF_TOKEN, PASSWORD, TOKEN" in made.stderr
    for name, data in members(file).items():
        assert not re.search(rb"hf_SECRET|hf_X1|hf_Y1", data), name
    assert b"--pad_token_id=0" in members(file)["run/plan.json"]

    (tmp_path / "seen").unlink()
    refused = hidl("replay", str(file), "--yes")
    assert refused.returncode == 4
    assert "redacts 3 value(s) that the run requires: HF_TOKEN, PASSWORD, TOKEN" in refused.stderr
    assert "--set TOKEN=VALUE" in refused.stderr
    assert not (tmp_path / "seen").exists()
    assert hidl("replay", str(file), "--yes", "--set", "nothing=1").returncode == 2

    given = ("--set", "TOKEN=hf_SECRET", "--set", "hf_token=hf_X2")
    shown = hidl("replay", str(file), "--dry-run", *given, PASSWORD="hf_Y2")
    assert shown.returncode == 0, shown.stderr
    assert not re.search(r"hf_SECRET|hf_X2|hf_Y2", shown.stdout + shown.stderr)
    done = hidl("replay", str(file), "--yes", *given, PASSWORD="hf_Y2")
    assert done.returncode in (0, 10, 11), done.stderr
    assert "redacted value HF_TOKEN: not in the capsule → supplied" in done.stdout
    said = (tmp_path / "seen").read_text()
    assert said == repr(["--key", "hf_SECRET", "--hf-token", "hf_X2", "--password", "hf_Y2", "--pad_token_id=0"])
    # What the program itself prints is shown while it runs.
    shown_lines = [line for line in (done.stdout + done.stderr).splitlines() if not line.startswith("arguments")]
    assert not re.search(r"hf_SECRET|hf_X2|hf_Y2", "\n".join(shown_lines))


def test_a_script_that_reads_a_token_stays_a_script(hidl: Hidl, tmp_path: Path) -> None:
    script = 'export HF_TOKEN="$(cat ~/.tok)"; export API_KEY="hf_K1 $HOME"; echo "$API_KEY"'
    run = run_json(hidl, "--", "bash", "-c", script)["run"]
    file = tmp_path / "script.capsule"
    assert hidl("capsule", run, "-o", str(file)).returncode == 0
    plan = json.loads(members(file)["run/plan.json"])
    hidden = 'export HF_TOKEN="$(cat ~/.tok)"; export API_KEY="***API_KEY***"; echo "$API_KEY"'
    assert plan["workload"]["program"]["arguments"] == ["-c", hidden]
    assert b"hf_K1" not in b"".join(members(file).values())
    assert hidl("replay", str(file), "--dry-run").returncode == 0


def test_a_capsule_that_does_not_name_its_hidden_words_is_not_run(hidl: Hidl, capsule: Path, tmp_path: Path) -> None:
    held = read(capsule)
    plan = held.text("run/plan.json").replace('"1"', '"***"')
    assert plan != held.text("run/plan.json")
    old = tmp_path / "old.capsule"
    whole = replace(held, hidden=None, members={**held.members, "run/plan.json": plan.encode()})
    old.write_bytes(whole.to_bytes())
    refused = hidl("replay", str(old), "--yes")
    assert refused.returncode == 4
    assert "redacts values that the run requires, and does not name them" in refused.stderr
    for words in (("bisect", str(old), str(capsule), "--yes"), ("bisect", str(capsule), str(old), "--yes")):
        assert hidl(*words, "--metric", "rate").returncode in (2, 4)


def test_a_run_without_metrics_has_no_capsule(hidl: Hidl) -> None:
    hidl.add_workload("broken", "fails.py")
    assert hidl("run", "broken").returncode == 8
    completed = hidl("capsule")
    assert completed.returncode == 4
    assert "has no metrics" in completed.stderr


@pytest.mark.deep
def test_made_on_this_machine_and_replayed_on_a_cluster(
    hidl: Hidl, capsule: Path, cluster: LivingCluster, tmp_path: Path
) -> None:
    home = {f"XDG_{name}_HOME": str(tmp_path / "fresh" / name.lower()) for name in ("CONFIG", "STATE", "DATA", "CACHE")}
    fresh = Hidl(hidl.environment | cluster.environment | home)
    completed = fresh("replay", str(capsule), "--site", "test-cluster", "--yes", "--json")
    assert completed.returncode == 0, completed.stderr
    found = json.loads(completed.stdout)
    assert found["answer"] == "same within noise"
    assert "site: local → test-cluster" in found["changed"]
    (run,) = fresh.runs.iterdir()
    assert json.loads((run / "job.json").read_text())["scheduler"] == "slurm"
