"""Several probes want the same answers: each question is asked once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from hidl_cli.doctor.context import CachedHost
from hidl_cli.site.probes.host import Host, ThisHost
from tests.doctor.machines import host


def test_a_question_is_asked_once() -> None:
    machine = host(answers={"df -Pk": "full"})
    once = CachedHost(machine)
    assert [once.ask("df", "-Pk"), once.ask("df", "-Pk"), machine.asked] == ["full", "full", ["df -Pk"]]


def test_other_words_or_with_stderr_is_another_question() -> None:
    machine = host()
    once = CachedHost(machine)
    once.ask("srun", "--mpi=list")
    once.ask("srun", "--mpi=list", stderr=True)
    once.ask("srun", "--version")
    assert len(machine.asked) == 3


def test_who_asks_while_another_waits_gets_the_same_answer() -> None:
    machine = ThisHost()
    once: Host = CachedHost(machine)
    together = Barrier(8)

    def ask(_: int) -> str | None:
        together.wait()
        return once.ask("sh", "-c", "echo $$")  # another number for each that is started

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(ask, range(8)))) == 1


def test_a_failure_is_known_of_the_machine_that_was_asked() -> None:
    once = CachedHost(ThisHost())
    assert once.ask("false") is None
    assert "`false` failed" in once.failures[0]
