"""The stand-in PBS speaks as the OpenPBS that was recorded (tests/schedulers/recorded/pbs)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.standin import StandIn
from tests.waiting import until

pytestmark = pytest.mark.real

RECORDED = Path(__file__).parents[2] / "schedulers/recorded/pbs"


def recorded(name: str) -> dict[str, Any]:
    """The only job of a recorded ``qstat``."""
    (found,) = json.loads((RECORDED / f"qstat_{name}.json").read_text())["Jobs"].values()
    return dict(found)


def told(pbs: StandIn, number: int = -1) -> dict[str, Any]:
    """What ``qstat -x -f -F json`` says of a job."""
    done = pbs("qstat", "-x", "-f", "-F", "json", pbs.store.jobs()[number].id)
    (found,) = json.loads(done.stdout)["Jobs"].values()
    return dict(found)


def refusals(file: str) -> dict[str, tuple[int, str]]:
    """The recorded commands: status and first line on stderr."""
    found: dict[str, tuple[int, str]] = {}
    for block in (RECORDED / file).read_text().split("$ ")[1:]:
        command, *lines = block.splitlines()
        errors = [line.removeprefix("stderr: ") for line in lines if line.startswith("stderr: ")]
        found.setdefault(command, (int(lines[-1].removeprefix("exit: ")), errors[0] if errors else ""))
    return found


@pytest.mark.parametrize(
    ("command", "like"),
    [
        ("qsub -q nope job.sh", "qsub -q nope ok.sh"),
        ("qsub -q debug -l walltime=02:00:00 job.sh", "qsub -q debug -l walltime=02:00:00 ok.sh"),
        ("qsub -q debug -l select=3:ncpus=1 job.sh", "qsub -q debug -l select=3:ncpus=1 -l walltime=00:10:00 ok.sh"),
        ("qsub -l frobs=2 job.sh", "qsub -l frobs=2 ok.sh"),
        ("qsub -l select=1:frobs=2 job.sh", "qsub -l select=1:frobs=2 ok.sh"),
        ("qsub -l select=zero job.sh", "qsub -l select=zero ok.sh"),
        ("qsub -l place=nonsense job.sh", "qsub -l place=nonsense ok.sh"),
        ("qsub -l walltime=nonsense job.sh", "qsub -l walltime=nonsense ok.sh"),
        ("qsub missing.sh", "qsub missing.sh"),
        ("qsub --frobnicate job.sh", "qsub --frobnicate ok.sh"),
    ],
)
def test_a_refusal_has_the_words_and_the_status_of_openpbs(pbs: StandIn, command: str, like: str) -> None:
    pbs.script("true")
    done = pbs(*command.split())
    assert (done.returncode, done.stderr.splitlines()[1]) == refusals("refusals.txt")[like]


@pytest.mark.parametrize(
    ("script", "options", "like"),
    [("exit 0", "", "done0"), ("exit 3", "", "exit3"), ("sleep 60", "-l walltime=1", "walltime")],
)
def test_an_ended_job_has_the_state_of_openpbs(pbs: StandIn, script: str, options: str, like: str) -> None:
    pbs("qsub", *options.split(), pbs.script(script))
    pbs.wait()
    mine, true = told(pbs), recorded(like)
    assert [mine[key] for key in ("job_state", "substate", "Exit_status")] == [
        true[key] for key in ("job_state", "substate", "Exit_status")
    ]
    assert mine["comment"].split(" and ")[1:] == true["comment"].split(" and ")[1:]


def test_every_attribute_is_one_of_openpbs(pbs: StandIn) -> None:
    pbs("qsub", "-l", "select=2:ncpus=1,walltime=00:05:00", pbs.script("exit 0"))
    pbs.wait()
    true = recorded("done0") | {"Account_Name": ""}
    assert set(told(pbs)) <= set(true)


def test_attributes_are_shown_as_text_too(pbs: StandIn) -> None:
    pbs("qsub", pbs.script("exit 3"))
    pbs.wait()
    lines = pbs("qstat", "-x", "-f", "101").stdout.splitlines()
    assert (lines[0], "    job_state = F" in lines, "    Exit_status = 3" in lines) == (
        "Job Id: 101.login1",
        True,
        True,
    )


def test_a_deleted_job_is_finished_with_the_signal(pbs: StandIn) -> None:
    pbs("qsub", pbs.script("sleep 60"))
    pbs.wait(stat="RUN")
    pbs("qdel", "101.login1")
    pbs.wait()
    assert [told(pbs)[key] for key in ("job_state", "substate", "Exit_status")] == ["F", 91, 271]


def test_a_held_job_waits_and_leaves_no_exit_status_once_deleted(pbs: StandIn) -> None:
    pbs("qsub", "-h", pbs.script("true"))
    assert told(pbs)["job_state"] == recorded("held")["job_state"]
    pbs("qdel", "101")
    pbs.wait()
    assert "Exit_status" not in told(pbs)


def test_a_host_is_given_to_one_job_only(pbs: StandIn) -> None:
    pbs.set(hosts={"a": {}, "b": {}})
    pbs("qsub", "-l", "select=2:ncpus=1", pbs.script("sleep 60"))
    pbs.wait(stat="RUN")
    pbs("qsub", pbs.script("true", "second.sh"))
    time.sleep(0.3)
    assert (told(pbs)["job_state"], told(pbs)["comment"][:11]) == ("Q", "Not Running")
    pbs("qdel", "101")
    assert pbs.wait().stat == "DONE"


def test_gpus_are_looked_for_where_they_are(pbs: StandIn) -> None:
    pbs.set(hosts={"with": {"gpus": 4}, "without": {}})
    pbs("qsub", "-l", "select=1:ncpus=1:ngpus=4", pbs.script("true"))
    pbs("qsub", "-l", "select=1:ncpus=1", pbs.script("true"))
    assert [pbs.wait(number).hosts for number in (0, 1)] == [("with",), ("without",)]


def test_a_job_waits_for_another(pbs: StandIn) -> None:
    gate = pbs.spool.parent / "go"
    pbs("qsub", pbs.script(f"until [ -e {gate} ]; do sleep 0.05; done"))
    pbs("qsub", "-W", "depend=afterok:101.login1", pbs.script("true", "second.sh"))
    assert told(pbs)["job_state"] == recorded("depends")["job_state"]
    gate.touch()
    assert pbs.wait().stat == "DONE"


def test_a_script_starts_at_home_and_finds_its_hosts(pbs: StandIn, tmp_path: Path) -> None:
    script = "#PBS -l select=2:ncpus=1:mpiprocs=2\n#PBS -j oe\npwd; cat $PBS_NODEFILE; echo $PBS_O_WORKDIR"
    pbs("qsub", "-N", "mine", pbs.script(script))
    pbs.wait()
    until((tmp_path / "mine.o101").is_file, within=10)
    text = (tmp_path / "mine.o101").read_text().split()
    assert text == [str(Path.home()), "node01", "node01", "node02", "node02", str(tmp_path)]


def test_the_environment_is_passed_on_only_if_asked_for(pbs: StandIn, tmp_path: Path) -> None:
    pbs("qsub", "-V", "-o", "all", pbs.script("echo ${OWN-none}"), OWN="x")
    pbs("qsub", "-v", "OWN", "-o", "one", "job.sh", OWN="x")
    pbs("qsub", "-o", "none", "job.sh", OWN="x")
    for number in range(3):
        pbs.wait(number)
    time.sleep(0.2)
    assert [(tmp_path / name).read_text() for name in ("all", "one", "none")] == ["x\n", "x\n", "none\n"]


@pytest.mark.parametrize("command", ["qstat -x -f -F json 40", "qsub ok.sh", "qdel 40"])
def test_nobody_answers_in_the_words_of_openpbs(pbs: StandIn, command: str) -> None:
    pbs.end_daemon()
    done = pbs(*command.split())
    assert (done.returncode, done.stderr.splitlines()[0]) == refusals("unreachable.txt")[command]


@pytest.mark.parametrize(
    "command", ["qdel 99999", "qdel nonsense", "qstat -f -F json 99999", "qstat -f -F json nonsense"]
)
def test_an_unknown_job_is_refused_as_by_openpbs(pbs: StandIn, command: str) -> None:
    done = pbs(*command.split())
    status, words = (refusals("qdel.txt") | refusals("qstat_unknown.txt"))[command]
    assert (done.returncode, done.stderr.strip()) == (status, words.replace("node1", "login1"))


def test_pbsnodes_shows_who_has_a_host(pbs: StandIn) -> None:
    pbs.set(hosts={"a": {"slots": 4}, "b": {}})
    pbs("qsub", pbs.script("sleep 60"))
    pbs.wait(stat="RUN")
    nodes = json.loads(pbs("pbsnodes", "-a", "-F", "json").stdout)["nodes"]
    true = json.loads((RECORDED / "pbsnodes.json").read_text())["nodes"]["node2"]
    assert [node["state"] for node in nodes.values()] == ["job-exclusive", "free"]
    assert set(nodes["a"]) <= set(true)


def test_site_rules_are_refused_by_its_hook(pbs: StandIn) -> None:
    pbs.set(required=["-A", "-l walltime"])
    done = pbs("qsub", "-l", "walltime=60", pbs.script("true"))
    assert (done.returncode, done.stderr.splitlines()[1]) == refusals("refusals_hook.txt")["qsub ok.sh"]
