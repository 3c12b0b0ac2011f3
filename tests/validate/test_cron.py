"""The nightly: written, shown, replaced, taken away; what else is in the user's table stays."""

from __future__ import annotations

import inspect
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, cast, get_args

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from hidl_cli.commands.app import command_line
from hidl_cli.commands.arguments import limit_in_seconds
from hidl_cli.commands.validate import validate
from hidl_cli.errors import MissingPrecondition, UsageError
from hidl_cli.validate import session
from hidl_cli.validate.bridge import CheckLocation
from hidl_cli.validate.cron import Nightly, _Crontab
from hidl_cli.validate.session import ValidationRequest
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
    words = shlex.split(re.findall("to remove it: (.*)", one.stderr)[0])

    missing = with_table("validate", "--uninstall-cron")
    gone, again = with_table(*words[1:]), with_table(*words[1:])

    assert missing.returncode == 4
    assert re.search(r"crontab contains: local-mpi_sanity-account_a_b-[0-9a-f]{8}, local-scale\b", missing.stderr)
    assert (gone.returncode, again.returncode) == (0, 4)
    assert re.findall("# hidl validate (.*): begin", table.read_text()) == ["local-scale"]


#: Options that say when and how the nightly is run, not what it does; --hostfile is carried by --hosts.
OF_THE_TABLE = {"install_cron", "uninstall_cron", "at", "cron_with", "dry_run", "hostfile"}
VALUES = {"time": "00:05:00", "jobs": "3", "device": "cpu", "junit": "/x/y.xml", "site": "local", "hosts": "a,b"}
VALUES |= {"prefix": "/x/p"}


@pytest.mark.parametrize("name", sorted(set(inspect.signature(validate).parameters) - OF_THE_TABLE - {"partition"}))
def test_no_option_is_lost(with_table: Hidl, name: str) -> None:
    option = f"--{name.replace('_', '-')}"
    is_flag = get_args(inspect.signature(validate).parameters[name].annotation)[0] is bool
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
    assert "no case on site local matches check no_such" in " ".join(log.read_text().split())


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
        Nightly.of("local", ValidationRequest(CheckLocation()), at)


def test_no_secret_of_the_environment_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "geheim")
    assert "geheim" not in Nightly.of("local", ValidationRequest(CheckLocation()), "02:00").shell()


def test_every_option_that_was_asked_for_is_kept() -> None:
    place = CheckLocation(site="s", account="a b", qos="q", time_limit=90.0, hosts="a,b:4")
    words = shlex.split(Nightly.of("s", ValidationRequest(place, ("p",), ("scale",), (), 2), "02:00").shell())
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
    one, two = (
        session.prepare(ValidationRequest(CheckLocation(site="perlmutter"), (name,), ("nightly",)))
        for name in ("cpu", "gpu")
    )
    with (
        session.alone(one),
        session.alone(two),
        pytest.raises(MissingPrecondition, match="still running"),
        session.alone(one),
    ):
        pass


def test_another_place_is_another_nightly_and_another_time_is_not() -> None:
    def key(at: str = "02:00", partitions: tuple[str, ...] = (), **place: Any) -> str:
        return Nightly.of("s", ValidationRequest(CheckLocation(site="s", **place), partitions), at).key

    kinds = [key(), key(partitions=("p",)), key(account="p"), key(prefix="/apps"), key(qos="q"), key(device="cpu")]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", each) for each in kinds)
    assert key(at="03:00", time_limit=90.0) == key()


def test_selections_that_look_alike_have_keys_of_their_own() -> None:
    """Otherwise, the second nightly replaces the first without a word, and both share a lock."""
    alike = [
        ("s", ValidationRequest(CheckLocation(), (), ("a", "b"))),
        ("s", ValidationRequest(CheckLocation(), (), ("a",), ("b",))),
        ("s", ValidationRequest(CheckLocation(), (), (), ("a", "b"))),
        ("s", ValidationRequest(CheckLocation(), (), ("a_b",))),
        ("s", ValidationRequest(CheckLocation(), (), ("a b",))),
        ("s-a", ValidationRequest(CheckLocation(), (), ("b",))),
        ("s", ValidationRequest(CheckLocation(prefix="/a/b"), (), ("c",))),
        ("s", ValidationRequest(CheckLocation(prefix="/a_b"), (), ("c",))),
    ]
    assert len({asked.key(site) for site, asked in alike}) == len(alike)
    assert ValidationRequest(CheckLocation(), (), ("nightly",)).key("s") == "s-nightly"


@pytest.mark.parametrize("words", [("--check", "a\n* * * * * touch evil"), ("--account", "a\rb")])
def test_a_line_break_does_not_become_another_line_of_the_table(
    with_table: Hidl, table: Path, words: tuple[str, ...]
) -> None:
    table.write_text(OTHERS)
    refused = with_table("validate", "--install-cron", "--cron-with", "crontab", *words)
    assert (refused.returncode, "line break" in refused.stderr, table.read_text()) == (2, True, OTHERS)


def test_a_relative_prefix_is_that_of_the_working_directory(with_table: Hidl) -> None:
    shown = with_table("validate", "--install-cron", "--dry-run", "--cron-with", "crontab", "--prefix=apps")
    assert f"--prefix={Path.cwd()}/apps" in shown.stdout


VALUE = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=12)


@given(
    given_=st.fixed_dictionaries(
        {},
        optional={
            **{name: st.lists(VALUE, min_size=1, max_size=2) for name in ("tag", "check", "partition")},
            **dict.fromkeys(("account", "qos", "reservation"), VALUE),
            "prefix": VALUE.map("/apps/{}".format),
            "device": st.sampled_from(["cpu", "gpu"]),
            "time_limit": st.integers(1, 100_000).map(lambda minutes: 60.0 * minutes),
            "jobs": st.integers(1, 99),
        },
    )
)
def test_every_option_is_read_back_from_the_line(given_: dict[str, Any]) -> None:
    """cron ends the command at the first % without a backslash; a shell makes its words, and hidl reads these."""
    of_place = {
        name: given_[name]
        for name in ("account", "qos", "reservation", "prefix", "device", "time_limit")
        if name in given_
    }
    lists = (tuple(given_.get(name, ())) for name in ("partition", "tag", "check"))
    asked = ValidationRequest(CheckLocation(site="s", **of_place), *lists, given_.get("jobs"))
    line = _Crontab("crontab").text(Nightly.of("s", asked, "02:00", ["--no-check"])).splitlines()[1]
    command = re.split(r"(?<!\\)%", line.split(" ", 5)[5])[0].replace("\\%", "%")
    words = shlex.split(command.partition(" >> ")[0] if " >> " not in repr(given_) else command)
    words = words[words.index("validate") + 1 :]
    words = words[: words.index("--no-check") + 1]
    root = cast("click.Group", get_command(command_line()))
    command_ = cast("click.Command", root.get_command(click.Context(root), "validate"))
    read = command_.make_context("validate", words).params
    for name in ("tag", "check", "partition"):
        assert list(read[name] or ()) == given_.get(name, [])
    for name in ("account", "qos", "reservation", "prefix", "jobs"):
        assert read[name] == given_.get(name)
    assert read["device"] == given_.get("device")
    assert limit_in_seconds(read["time"]) == given_.get("time_limit")
    assert (read["site"], read["no_check"]) == ("s", True)
