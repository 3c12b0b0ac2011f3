"""The stand-in Flux speaks as the flux-core that was recorded (tests/schedulers/recorded/flux)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hidl_twin.flux import hosts, ids

from tests.cluster.standin import StandIn
from tests.waiting import until

pytestmark = pytest.mark.real

RECORDED = Path(__file__).parents[2] / "schedulers/recorded/flux"


def recorded(name: str) -> dict[str, Any]:
    """A recorded job."""
    return dict(json.loads((RECORDED / f"jobs_{name}.json").read_text()))


def told(flux: StandIn, number: int = -1) -> dict[str, Any]:
    """What ``flux jobs --json`` says of one job."""
    done = flux("flux", "jobs", "--json", ids.f58(int(flux.store.jobs()[number].id)))
    return dict(json.loads(done.stdout))


def commands(file: str) -> dict[str, tuple[int, list[str]]]:
    """The recorded commands: status, and the lines on stderr."""
    found = {}
    for block in (RECORDED / file).read_text().split("$ ")[1:]:
        command, *lines = block.splitlines()
        errors = [line.removeprefix("stderr: ") for line in lines if line.startswith("stderr: ")]
        found[command] = (int(lines[-1].removeprefix("exit: ")), errors)
    return found


@pytest.mark.parametrize(
    "command",
    [
        "flux batch -N1 -q nope ok.sh",
        "flux batch -N1 -t 2h ok.sh",
        "flux batch -N1 -q debug -t 20m ok.sh",
        "flux batch -N2 -q debug -t 5m ok.sh",
        "flux batch -N9 -t 5m ok.sh",
        "flux batch -N1 -t nonsense ok.sh",
        "flux batch -N1 --dependency=afterok:f123 -t 5m ok.sh",
    ],
)
def test_a_refusal_has_the_words_and_the_status_of_flux(flux: StandIn, command: str) -> None:
    flux.script("true", "ok.sh")
    done = flux(*command.split())
    assert (done.returncode, done.stderr.splitlines()[1:]) == commands("refusals.txt")[command]


def test_an_unknown_option_is_refused_as_by_flux(flux: StandIn) -> None:
    done = flux("flux", "batch", "--frobnicate", flux.script("true"))
    status, lines = commands("refusals.txt")["flux batch --frobnicate ok.sh"]
    assert (done.returncode, done.stderr.splitlines()[-1].partition(":")[0]) == (status, lines[-1].partition(":")[0])


@pytest.mark.parametrize(
    ("script", "options", "like"),
    [
        ("exit 0", "-t 5m", "done0"),
        ("exit 3", "-t 5m", "exit3"),
        ("kill -9 $$", "-t 5m", "kill9"),
        ("sleep 60", "-t 1s", "timelimit"),
    ],
)
def test_an_ended_job_has_the_state_of_flux(flux: StandIn, script: str, options: str, like: str) -> None:
    flux.set(minute=60)
    flux("flux", "batch", *options.split(), flux.script(script))
    flux.wait()
    keys = ("state", "status", "result", "success", "returncode", "waitstatus", "exception")
    assert [told(flux)[key] for key in keys] == [recorded(like)[key] for key in keys]


def test_every_field_is_one_of_flux(flux: StandIn) -> None:
    flux("flux", "batch", "-N2", "-t", "5m", flux.script("exit 0"))
    flux.wait()
    assert set(told(flux)) <= set(recorded("done0"))


def test_a_cancelled_job_has_an_exception(flux: StandIn) -> None:
    flux("flux", "batch", "-t", "5m", flux.script("sleep 60"))
    flux.wait(stat="RUN")
    flux("flux", "cancel", told(flux)["jobid"])
    flux.wait()
    keys = ("state", "status", "result", "exception")
    assert [told(flux)[key] for key in keys] == [recorded("cancelled")[key] for key in keys]


def test_a_held_job_waits_until_it_is_cancelled(flux: StandIn) -> None:
    flux("flux", "batch", "--urgency=0", "-t", "5m", flux.script("true"))
    time.sleep(0.3)
    assert told(flux)["state"] == recorded("held")["state"]
    flux("flux", "cancel", told(flux)["jobid"])
    flux.wait()
    keys = ("status", "returncode", "exception")
    assert [told(flux)[key] for key in keys] == [recorded("cancelled_pending")[key] for key in keys]


def test_a_job_waits_for_another(flux: StandIn) -> None:
    gate = flux.spool.parent / "go"
    waits = flux.script(f"until [ -e {gate} ]; do sleep 0.05; done")
    first = flux("flux", "batch", "-t", "5m", waits).stdout.strip()
    flux("flux", "batch", "-t", "5m", f"--dependency=afterok:{first}", flux.script("true", "second.sh"))
    until(
        lambda: (told(flux)["state"], told(flux)["dependencies"]) == ("DEPEND", [f"after-success={first}"]),
        otherwise=lambda: told(flux),
    )
    gate.touch()
    assert flux.wait().stat == "DONE"


def test_a_host_is_given_to_one_job_only(flux: StandIn) -> None:
    flux.set(hosts={"a1": {}, "a2": {}})
    flux("flux", "batch", "-N2", "-t", "5m", flux.script("sleep 60"))
    flux.wait(stat="RUN")
    flux("flux", "batch", "-N1", "-t", "5m", flux.script("true", "second.sh"))
    time.sleep(0.3)
    assert told(flux)["state"] == recorded("waiting")["state"]
    flux("flux", "cancel", told(flux, 0)["jobid"])
    assert flux.wait().stat == "DONE"


def test_a_script_finds_its_nodes(flux: StandIn, tmp_path: Path) -> None:
    flux.set(hosts={f"tuolumne{number}": {"slots": 96} for number in (1001, 1002, 1004)})
    script = (
        "# flux: -N3\n# flux: -t 5m\n# flux: --output=told\nflux hostlist -e local; flux hostlist; flux resource info"
    )
    flux("flux", "batch", flux.script(script))
    flux.wait()
    assert (tmp_path / "told").read_text().splitlines() == [
        "tuolumne1001 tuolumne1002 tuolumne1004",
        "tuolumne[1001-1002,1004]",
        "3 Nodes, 288 Cores, 0 GPUs",
    ]


@pytest.mark.parametrize("command", ["flux cancel f12345", "flux jobs --json f12345"])
def test_an_unknown_job_is_refused_as_by_flux(flux: StandIn, command: str) -> None:
    done = flux(*command.split())
    known = commands("cancel.txt") | commands("unknown_job.txt")
    assert (done.returncode, done.stderr.splitlines()) == known[command]


@pytest.mark.parametrize("command", ["flux jobs -a --json", "flux batch -N1 -t 5m ok.sh", "flux cancel f12345"])
def test_nobody_answers_in_the_words_of_flux(flux: StandIn, command: str) -> None:
    flux.end_daemon()
    done = flux(*command.split())
    status, (line,) = commands("unreachable.txt")[command]
    assert (done.returncode, done.stderr.strip().replace(str(flux.spool / "local"), "")) == (
        status,
        line.replace("/nonexistent/flux/local", ""),
    )


@pytest.mark.parametrize("name", ["done0", "exit3", "running", "nodelost"])
def test_ids_are_written_as_flux_writes_them(name: str) -> None:
    job = recorded(name)
    assert (ids.f58(job["id"]), ids.parse(job["jobid"]), ids.parse(str(job["id"]))) == (
        job["jobid"],
        job["id"],
        job["id"],
    )


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["tuolumne1001", "tuolumne1002", "tuolumne1003"], "tuolumne[1001-1003]"),
        (["a1", "a3", "b"], "a[1,3],b"),
        (["node"], "node"),
        (["n9", "n10"], "n9,n10"),
        ([], ""),
    ],
)
def test_host_lists_are_folded_and_expanded(names: list[str], text: str) -> None:
    assert (hosts.fold(names), hosts.expand(text)) == (text, names)
