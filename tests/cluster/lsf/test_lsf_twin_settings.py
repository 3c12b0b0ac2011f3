"""The LSF of a twin has the queues, limits and rules of the site's file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hidl_twin.batch import settings
from hidl_twin.batch.settings import Settings
from hidl_twin.batch.store import Job
from hidl_twin.batch.twin import settings_of
from hidl_twin.layout import Layout
from hidl_twin.lsf.admission import admit
from hidl_twin.lsf.system import Lsf
from hidl_twin.twin.of_site import dress_of


def twin(site: str) -> Settings:
    """The LSF of a twin with two nodes of each kind."""
    return settings_of(Lsf(), Layout(Path("/twin")), dress_of(site, 2), {})


def submitted(site: str, **options: str) -> Job:
    """A job that ``bsub`` with these options enters."""
    given = {f"-{name}": value for name, value in options.items()}
    return admit(Job("", "me", given, "/", "login1", 0.0), twin(site))


def test_the_queues_are_the_sites() -> None:
    assert list(twin("summit").queues) == ["batch", "batch-hm", "killable", "debug"]


def test_a_queue_has_the_nodes_of_its_kind() -> None:
    queues = twin("summit").queues
    assert not set(queues["batch"].hosts) & set(queues["batch-hm"].hosts)


def test_a_host_is_what_the_site_says() -> None:
    host = next(iter(twin("summit").hosts.values()))
    assert (host.slots, host.threads_per_core, host.gpus, host.model) == (42, 4, 6, "POWER9")


@pytest.mark.parametrize(("nodes", "hours"), [(45, 2), (46, 6), (921, 12), (922, 24)])
def test_the_run_limit_depends_on_the_number_of_nodes(nodes: int, hours: int) -> None:
    assert twin("summit").queues["batch"].run_limit(nodes) == hours * 60


def test_a_queue_without_known_limits_has_none() -> None:
    assert twin("lassen").queues["pdebug"].run_limit(2) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"W": "10"}, "a project (-P) is required.\nRequest aborted by esub. Job not submitted."),
        ({"P": "X"}, "a run limit (-W) is required.\nRequest aborted by esub. Job not submitted."),
        ({"P": "X", "W": "2:01"}, "RUNLIMIT: Cannot exceed queue's hard limit(s). Job not submitted."),
        ({"P": "X", "W": "10", "q": "debug", "nnodes": "4609"}, "Too many processors requested. Job not submitted."),
        ({"P": "X", "W": "10", "q": "killable", "nnodes": "92"}, "Too many processors requested. Job not submitted."),
        ({"P": "X", "W": "10", "q": "nowhere"}, "nowhere: No such queue. Job not submitted."),
        ({"P": "X", "W": "soon"}, "soon: Illegal run limit. Job not submitted."),
        ({"P": "X", "W": "10", "nnodes": "3"}, "queue batch of this twin has 2 of the 4654 of summit"),
    ],
)
def test_what_summit_refuses_its_twin_refuses(
    options: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="255"):
        submitted("summit", **options)
    assert words in capsys.readouterr().err


def test_a_job_within_the_limits_gets_the_default_queue() -> None:
    job = submitted("summit", P="X", W="120", nnodes="2")
    assert (job.queue, job.options["-W"]) == ("batch", "2:00")


def test_settings_are_read_as_they_were_written(tmp_path: Path) -> None:
    settings.save(tmp_path / "settings.json", twin("summit"))
    assert settings.load(tmp_path / "settings.json") == twin("summit")
