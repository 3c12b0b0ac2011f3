"""What people really feed in: each output of ``index.yaml`` is read as it says. A new one is a file and an entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from hidl_cli.diagnoses import find_causes
from hidl_cli.process import Completed
from hidl_cli.record import State
from hidl_cli.schedulers import lsf as commands
from hidl_cli.schedulers import slurm as jobs
from hidl_cli.schedulers import slurm as reasons
from hidl_cli.schedulers.backend import complaint
from hidl_cli.site.probes import host as gpus
from hidl_cli.site.probes import lsf, slurm, software
from tests.site.recording import RecordedHost

PLACE = Path(__file__).parent
INDEX = yaml.safe_load((PLACE / "index.yaml").read_text(encoding="utf-8"))


def host(*programs: str, environment: Mapping[str, str] | None = None, **answers: str) -> RecordedHost:
    """A host with these programs, which answers so to a command's first word."""

    class Host(RecordedHost):
        def ask(self, *command: str, seconds: float = 0, stderr: bool = False) -> str | None:
            return answers.get(Path(command[0]).name.replace("-", "_"))

    return Host(PLACE / "none", environment=environment or {}, programs={name: f"/usr/bin/{name}" for name in programs})


def mpi_modules(text: str) -> Any:
    found = software.libraries(host("modulecmd", environment={"MODULES_CMD": "/usr/bin/modulecmd"}, modulecmd=text))
    return [[library.family, library.version, library.source] for library in found]


def queues(text: str) -> Any:
    batch = lsf.probe(host("lsid", lsid="My cluster name is c\n", bqueues=text))
    assert batch is not None
    return {queue.name: [queue.max_wall, *queue.remarks] for queue in batch.queues}


def amd_gpus(text: str) -> Any:
    cards = gpus.probe_gpus(host("rocm-smi", rocm_smi=text))
    assert cards is not None
    return [cards.count, cards.model, cards.arch]


def gres(text: str) -> Any:
    return list(slurm.gpus_of(text.strip()))


def refusal(text: str) -> Any:
    return complaint(commands.PROGRAMS.without_progress(Completed(("bsub",), 255, "", text)))


def pending(text: str) -> Any:
    found = [job for job in jobs.parse(text.splitlines()) if job.state is State.PENDING]
    never = {job.id: reasons.never_starts(job, lambda _: {}) for job in found}
    return {job.id: [job.reason, after.after if (after := never[job.id]) else None] for job in found}


def cause(text: str) -> Any:
    found = find_causes(text)
    return found[0].rule if found else None


READERS: dict[str, Callable[[str], Any]] = {
    "modules of MPI libraries": mpi_modules,
    "queues of LSF": queues,
    "GPUs of rocm-smi": amd_gpus,
    "GPUs of a node of Slurm": gres,
    "refusal of LSF": refusal,
    "pending jobs of Slurm": pending,
    "cause of a log": cause,
}


@pytest.mark.parametrize("entry", INDEX, ids=lambda entry: str(entry["file"]))
def test_it_is_read_right(entry: Mapping[str, Any]) -> None:
    assert READERS[entry["reader"]]((PLACE / entry["file"]).read_text(encoding="utf-8")) == entry["right"]


LOGS = [entry for entry in INDEX if entry["reader"] == "cause of a log"]
GOOD = [entry for entry in LOGS if entry["right"] is None]


@pytest.mark.parametrize("good", GOOD, ids=lambda entry: str(entry["file"]))
@pytest.mark.parametrize("log", LOGS, ids=lambda entry: str(entry["file"]))
def test_lines_of_a_good_run_before_a_failure_change_nothing(good: Mapping[str, Any], log: Mapping[str, Any]) -> None:
    texts = [(PLACE / entry["file"]).read_text(encoding="utf-8") for entry in (good, log)]
    assert cause("".join(texts)) == log["right"]


@pytest.mark.parametrize(
    "log", yaml.safe_load((PLACE / "logs.yaml").read_text(encoding="utf-8")), ids=lambda log: str(log["program"])
)
def test_the_cause_in_a_public_log_is_told(log: Mapping[str, Any]) -> None:
    assert cause(log["text"]) == log["right"]


def test_every_file_is_in_the_index() -> None:
    files = {file.name for file in PLACE.iterdir() if file.suffix not in (".py", ".yaml", ".pyc") and file.is_file()}
    assert files == {entry["file"] for entry in INDEX}
