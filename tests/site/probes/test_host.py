"""The machine that probes ask: real programs, which may hang, fail or be absent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hidl_cli.errors import SchedulerUnreachable
from hidl_cli.site.probes.host import ThisHost
from hidl_cli.site.probes.survey import survey

Install = Callable[[str, str], ThisHost]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """``install("program", "its shell script")``: the host with that program first on its PATH."""

    def install(name: str, script: str) -> ThisHost:
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return ThisHost({"PATH": f"{program.parent}:{os.environ['PATH']}", "LC_ALL": "de_DE.UTF-8"}, tmp_path)

    return install


def test_a_program_is_asked_in_the_language_of_its_documentation(install: Install) -> None:
    assert install("tell", 'echo "$LC_ALL $1"').ask("tell", "a b") == "C a b\n"


def test_what_stands_on_stderr_counts_where_it_is_wanted(install: Install) -> None:
    """Module systems print their lists there, and code for the shell on stdout."""
    host = install("tell", "echo 'test 0;'; echo modules >&2")

    assert (host.ask("tell"), host.ask("tell", stderr=True)) == ("test 0;\n", "test 0;\nmodules\n")


def test_a_program_that_fails_gives_no_answer_and_the_reason_is_kept(install: Install) -> None:
    host = install("tell", "echo 'no such thing' >&2; exit 1")

    assert host.ask("tell", "me") is None
    assert host.failures == ["`tell me` failed: no such thing"]


def test_a_program_that_hangs_is_ended(install: Install) -> None:
    host = install("tell", "sleep 600")

    assert host.ask("tell", seconds=0.2) is None
    assert "0.2 s" in host.failures[0]


def test_a_program_that_is_not_there_is_no_failure(install: Install) -> None:
    host = install("tell", "")

    assert (host.ask("no-such-program-anywhere"), host.failures) == (None, [])


def test_a_host_without_a_path_has_no_programs() -> None:
    assert ThisHost({}).which("sh") is None


def test_an_unsupported_scheduler_is_a_remark(install: Install) -> None:
    host = install("qhost", "")
    host.environment = {"PATH": host.environment["PATH"].partition(":")[0]}

    assert survey(host).remarks == ("Grid Engine (qhost) is installed too, but hidl cannot draft a site from it",)


def test_a_second_scheduler_is_a_remark(install: Install) -> None:
    host = install("lsid", "echo 'My cluster name is a'")
    install("pbsnodes", "")
    host.environment = {"PATH": host.environment["PATH"].partition(":")[0]}

    assert survey(host).remarks == ("PBS (pbsnodes) is installed too; this draft is for LSF",)


def test_a_scheduler_that_gives_no_answer_is_an_error_with_what_it_said(install: Install) -> None:
    host = install("lsid", "echo 'ls_getclustername(): LIM is down; try later' >&2; exit 255")
    host.environment = {"PATH": host.environment["PATH"].partition(":")[0]}

    with pytest.raises(SchedulerUnreachable, match="LIM is down"):
        survey(host)
