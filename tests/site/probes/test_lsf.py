"""What LSF is, from what its commands print (composed in their documented formats: no LSF was at hand)."""

from __future__ import annotations

import pytest

from hidl_cli.site.probes import lsf
from hidl_cli.site.probes.facts import SchedulerFacts
from tests.site.recording import DIRECTORY, RecordedHost, recorded


@pytest.fixture
def summit() -> SchedulerFacts:
    found = lsf.probe(recorded("summit"))
    assert found is not None
    return found


def test_the_cluster_has_a_name_and_a_version(summit: SchedulerFacts) -> None:
    assert (summit.cluster, summit.version) == ("summit", "10.1.0.9")


def test_queues_have_run_limits_in_minutes(summit: SchedulerFacts) -> None:
    assert {queue.name: queue.max_wall for queue in summit.queues} == {
        "batch": "1-00:00:00",
        "batch-hm": "1-00:00:00",
        "debug": "02:00:00",
        "killable": "1-00:00:00",
        "storage": None,
    }


def test_a_queue_for_some_users_is_restricted(summit: SchedulerFacts) -> None:
    assert [(queue.name, queue.remarks) for queue in summit.queues if queue.restricted] == [
        (
            "storage",
            ("USERS: stor_admins/ root", "EXCLUSIVE: jobs can request whole hosts (bsub -x)", "STATUS Open:Inact"),
        )
    ]


def test_the_default_queue_is_reported_by_bparams(summit: SchedulerFacts) -> None:
    assert [queue.name for queue in summit.queues if queue.is_default] == ["batch"]


def test_hosts_that_run_no_jobs_are_not_compute_nodes(summit: SchedulerFacts) -> None:
    names = {node.name for node in summit.nodes}

    assert len(names) == 54
    assert not names & {"batch1", "batch2", "login1", "h36n18"}


def test_memory_is_that_of_the_host_and_cores_are_unknown(summit: SchedulerFacts) -> None:
    hardware = summit.nodes[1].hardware

    assert (hardware.memory_mib, hardware.cores) == (621466, None)


def test_hosts_without_a_limit_of_jobs_are_compute_nodes() -> None:
    bhosts = "HOST_NAME STATUS JL/U MAX NJOBS RUN SSUSP USUSP RSV\n" + "".join(
        f"a{number} ok - {most} 0 0 0 0 0\n" for number, most in ((1, "-"), (2, "16"), (3, "0"))
    )
    lshosts = "HOST_NAME type model cpuf ncpus maxmem maxswp server RESOURCES\n" + "".join(
        f"a{number} X86_64 EPYC 60.0 128 503.5G - Yes (mg)\n" for number in (1, 2, 3)
    )
    host = RecordedHost(
        DIRECTORY / "none",
        programs={"lsid": "/usr/bin/lsid"},
        answers={"lsid": "My cluster name is a\n", "bhosts -w": bhosts, "lshosts -w": lshosts},
    )
    found = lsf.probe(host)

    assert found is not None
    assert [node.name for node in found.nodes] == ["a1", "a2"]


@pytest.mark.parametrize(
    ("limits", "wall", "remarks"),
    [
        (" RUNLIMIT\n 120.0 min\n", "02:00:00", []),
        (" RUNLIMIT\n 120.0 min of hostA\n", None, ["RUNLIMIT 120.0 min of hostA: scaled by a host's speed"]),
        ("MAXIMUM LIMITS:\n RUNLIMIT\n 2880.0 min\n\nSCHEDULING POLICIES:  FAIRSHARE\n", "2-00:00:00", []),
        ("DEFAULT LIMITS:\n RUNLIMIT\n 10.0 min\n\nUSERS: all\n", None, ["default RUNLIMIT 10.0 min"]),
        (
            "MAXIMUM LIMITS:\n CPULIMIT             RUNLIMIT\n 30.0 min of hostA    60.0 min\n",
            "01:00:00",
            ["CPULIMIT 30.0 min of hostA"],
        ),
        ("MAXIMUM LIMITS:\n TASKLIMIT\n 1 4 64\n", None, ["TASKLIMIT minimum 1, default 4, maximum 64"]),
        (" PROCLIMIT   MEMLIMIT\n 2 8         64 G\n", None, ["PROCLIMIT minimum 2, maximum 8", "MEMLIMIT 64 G"]),
    ],
)
def test_limits_of_queues_are_told_apart(limits: str, wall: str | None, remarks: list[str]) -> None:
    queue = f"QUEUE: q\n  -- For jobs.\n\nPRIO NICE STATUS          MAX\n 30   20  Open:Active       -\n\n{limits}"
    programs = {"lsid": "/usr/bin/lsid"}
    answers = {"lsid": "My cluster name is a\n", "bqueues -l": queue}
    found = lsf.probe(RecordedHost(DIRECTORY / "none", programs=programs, answers=answers))
    assert found is not None
    (read,) = found.queues
    assert read.max_wall == wall
    assert len(read.remarks) == len(remarks)
    assert all(one.startswith(other) for one, other in zip(read.remarks, remarks, strict=True))


def test_an_lsf_that_gives_no_answer_reports_nothing() -> None:
    assert lsf.probe(RecordedHost(DIRECTORY / "none", programs={"lsid": "/usr/bin/lsid"})) == SchedulerFacts("lsf")


def test_without_lsid_there_is_no_lsf() -> None:
    assert lsf.probe(RecordedHost(DIRECTORY / "none")) is None
