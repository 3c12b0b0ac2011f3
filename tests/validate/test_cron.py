"""The nightly: written, shown, replaced, taken away; what else is in the user's table stays."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hidl_cli.commands.validate import validate
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.validate import session
from hidl_cli.validate.bridge import Place
from hidl_cli.validate.cron import Nightly
from hidl_cli.validate.session import Asked
from tests.conftest import Hidl
from tests.waiting import patience

OTHERS = "# mine\n5 4 * * * echo 100\\%\n"
#: crontab(1) in as far as POSIX describes it: -l prints the table, or complains; a file takes its place.
CRONTAB = """#!/bin/sh
if [ "$1" = -l ]; then
    [ -f "$TABLE" ] || { echo "no crontab for $(id -un)" >&2; exit 1; }
    exec cat "$TABLE"
fi
exec cp "$1" "$TABLE"
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table that is kept in a file, through a crontab that is first on PATH."""
    program = tmp_path / "bin" / "crontab"
    program.parent.mkdir()
    program.write_text(CRONTAB)
    program.chmod(0o755)
    return tmp_path / "table"


@pytest.fixture
def with_table(hidl: Hidl, table: Path) -> Hidl:
    path = f"{table.parent / 'bin'}:{os.environ['PATH']}"
    return Hidl(hidl.environment | {"PATH": path, "TABLE": str(table)})


def test_it_is_written_beside_what_is_there_replaced_and_taken_away(with_table: Hidl, table: Path) -> None:
    table.write_text(OTHERS)

    first = with_table("validate", "--install-cron", "--cron-with", "crontab", "--at", "01:30")
    again = with_table("validate", "--install-cron", "--cron-with", "crontab", "--at", "03:05")

    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    text = table.read_text()
    assert text.startswith(OTHERS)
    assert text.count("hidl_cli validate") == 1
    assert "\n5 3 * * * env " in text
    assert with_table("validate", "--uninstall-cron", "--cron-with", "crontab").returncode == 0
    assert table.read_text() == OTHERS


def test_the_printed_line_takes_that_nightly_away_and_no_other(with_table: Hidl, table: Path) -> None:
    one = with_table("validate", "--install-cron", "--check", "mpi_sanity", "--account", "a b")
    two = with_table("validate", "--install-cron", "--tag", "scale")
    assert (one.returncode, two.returncode, table.read_text().count("hidl_cli validate")) == (0, 0, 2)
    words = shlex.split(re.findall("take it away with: (.*)", one.stderr)[0])

    missing = with_table("validate", "--uninstall-cron")
    gone, again = with_table(*words[1:]), with_table(*words[1:])

    assert (missing.returncode, "crontab has: local-mpi_sanity-account_a_b, local-scale" in missing.stderr) == (4, True)
    assert (gone.returncode, again.returncode) == (0, 4)
    assert re.findall("# hidl validate (.*): begin", table.read_text()) == ["local-scale"]


#: Options that say when and how the nightly is run, not what it does; --hostfile is carried by --hosts.
OF_THE_TABLE = {"install_cron", "uninstall_cron", "at", "cron_with", "dry_run", "hostfile"}
VALUES = {"time": "00:05:00", "jobs": "3", "device": "cpu", "junit": "/x/y.xml", "site": "local", "hosts": "a,b"}


@pytest.mark.parametrize("name", sorted(set(inspect.signature(validate).parameters) - OF_THE_TABLE - {"partition"}))
def test_no_option_is_lost(with_table: Hidl, name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    is_flag = inspect.signature(validate).parameters[name].annotation.startswith("Annotated[bool") or name in (
        "json",
        "no_check",
    )
    words = (option,) if is_flag else (f"{option}={VALUES.get(name, 'x')}",)
    shown = with_table("validate", "--install-cron", "--dry-run", "--cron-with", "crontab", *words)
    assert shown.returncode == 0, shown.stderr
    assert words[0] in shlex.split(shown.stdout.replace("\\%", "%"), comments=True)


@pytest.mark.deep
def test_the_line_is_what_a_shell_runs(with_table: Hidl, table: Path) -> None:
    assert with_table("validate", "--install-cron", "--cron-with", "crontab", "--check", "no_such").returncode == 0
    line = table.read_text().splitlines()[1].split(maxsplit=5)[5].replace("\\%", "%")

    subprocess.run(["sh", "-c", line], env={"HOME": "/"}, cwd="/", check=False, timeout=patience(120))

    log = next((Path(with_table.environment["XDG_STATE_HOME"]) / "hidl" / "validate").glob("*.log"))
    assert "no case on site local fits check no_such" in " ".join(log.read_text().split())


def test_a_dry_run_shows_it_and_writes_nothing(with_table: Hidl, table: Path) -> None:
    shown = with_table("validate", "--install-cron", "--cron-with", "crontab", "--dry-run")
    assert "0 2 * * * env " in shown.stdout
    assert not table.exists()


def test_the_timer_of_systemd_says_the_same(hidl: Hidl) -> None:
    shown = hidl("validate", "--install-cron", "--cron-with", "systemd", "--dry-run", "--at", "23:59").stdout
    assert "OnCalendar=*-*-* 23:59:00" in shown
    assert "hidl_cli validate --site=local --tag=nightly" in shown


@pytest.mark.parametrize("at", ["24:00", "2", "12:60", "midnight"])
def test_what_is_not_a_time_of_a_day_is_reported(at: str) -> None:
    with pytest.raises(UsageError):
        Nightly.of("local", Asked(Place()), at)


def test_no_secret_of_the_environment_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "geheim")
    assert "geheim" not in Nightly.of("local", Asked(Place()), "02:00").shell()


def test_every_option_that_was_asked_for_is_kept() -> None:
    place = Place(site="s", account="a b", qos="q", time_limit=90.0, hosts="a,b:4")
    words = shlex.split(Nightly.of("s", Asked(place, ("p",), ("scale",), (), 2), "02:00").shell())
    for word in (
        "--site=s",
        "--account=a b",
        "--qos=q",
        "--hosts=a,b:4",
        "--time=00:01:30",
        "--partition=p",
        "--tag=scale",
        "--jobs=2",
    ):
        assert word in words


def test_nightlies_of_two_partitions_do_not_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, two = (session.prepare(Asked(Place(site="perlmutter"), (name,), ("nightly",))) for name in ("cpu", "gpu"))
    with (
        session.alone(one),
        session.alone(two),
        pytest.raises(MissingPrecondition, match="still runs"),
        session.alone(one),
    ):
        pass


def test_another_place_is_another_nightly_and_another_time_is_not() -> None:
    def key(at: str = "02:00", partitions: tuple[str, ...] = (), **place: Any) -> str:
        return Nightly.of("s", Asked(Place(site="s", **place), partitions), at).key

    kinds = [key(), key(partitions=("p",)), key(account="p"), key(prefix="/apps"), key(qos="q"), key(device="cpu")]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", each) for each in kinds)
    assert key(at="03:00", time_limit=90.0) == key()
