"""Which site this is: each site's conditions, why they hold or not, and which one wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.site.detect import Outcome, choose, detect
from hidl_cli.site.load import load_site

REST = """\
title: T
scheduler: local
launchers: [mpiexec]
node_types: {cpu: {cores: 8}}
partitions: {normal: {node_type: cpu}}
default_partition: normal
"""
HERE = os.uname().nodename


def put(config: Path, name: str, match: str = "", rest: str = REST) -> Path:
    file = config / "sites" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"name: {name}\n{match}{rest}")
    return file


def outcome(site: str, hostname: str = "login1.frontera.edu", **environment: str) -> Outcome:
    return next(found for found in detect(hostname, environment) if found.site == site)


@pytest.mark.parametrize(
    ("match", "matched", "reasons"),
    [
        (
            "match: {hostname: 'login\\d\\.frontera\\.edu'}\n",
            True,
            ("host name 'login1.frontera.edu' matches 'login\\d\\.frontera\\.edu'",),
        ),
        ("match: {hostname: frontera}\n", False, ("host name 'login1.frontera.edu' does not match 'frontera'",)),
        ("match:\n  env:\n    SYSTEM: front.*\n", True, ("$SYSTEM 'frontera' matches 'front.*'",)),
        ("match: {env: {SYSTEM: front}}\n", False, ("$SYSTEM 'frontera' does not match 'front'",)),
        ("match: {env: {OTHER: .*}}\n", False, ("$OTHER is not set",)),
        (
            "match:\n  hostname: .*\\.edu\n\n  # and\n  env: {OTHER: x}\n",
            False,
            ("host name 'login1.frontera.edu' matches '.*\\.edu'", "$OTHER is not set"),
        ),
        ("", False, ("its file has no `match`",)),
        ("# match: {hostname: .*}\n", False, ("its file has no `match`",)),
        ("match: null\n", False, ("its file has no `match`",)),
    ],
)
def test_every_condition_tells_why_it_holds_or_not(
    config: Path, match: str, matched: bool, reasons: tuple[str, ...]
) -> None:
    put(config, "mine", match)

    found = outcome("mine", SYSTEM="frontera")

    assert (found.matched, found.reasons) == (matched, reasons)


@pytest.mark.parametrize(
    "text",
    [
        '{name: mine, match: {hostname: ".*"}, title: T, scheduler: local, launchers: [mpiexec], node_types: {c: {}},\n'
        "partitions: {p: {node_type: c}}, default_partition: p}\n",
        f'name: mine\n"match": {{hostname: .*}}\n{REST}',
        f"name: mine\n? match\n: {{hostname: .*}}\n{REST}",
        f"--- # a site\nname: mine\nmatch :\n    hostname: .*\n{REST}",
        f"name: mine\nmatch: {{hostname:\n  .*\n  }}\n{REST}",
        f"name: &all mine\nsources: [&any .*]\nmatch: {{hostname: *any}}\n{REST}",
        f"name: mine\nmatch:\n  hostname: .*\n{REST}".replace("\n", "\r\n"),
        f"name: mine\nmatch:\n  hostname: .*\n{REST}".replace("\n", "\r"),
    ],
    ids=["flow", "quoted", "explicit key", "document start", "several lines", "alias", "CRLF", "CR"],
)
def test_a_match_is_found_however_it_is_written(config: Path, text: str) -> None:
    put(config, "mine")
    (config / "sites" / "mine.yaml").write_bytes(text.encode())

    assert outcome("mine").matched


def test_the_site_with_the_most_conditions_wins(config: Path) -> None:
    put(config, "cluster", "match: {hostname: .*frontera.*}\n")
    put(config, "cluster-gpu", "match: {hostname: .*frontera.*, env: {QUEUE: rtx.*}}\n")

    assert choose(detect("c1.frontera", {"QUEUE": "rtx-dev"})) == "cluster-gpu"
    assert choose(detect("c1.frontera", {"QUEUE": "normal"})) == "cluster"
    assert choose(detect("laptop", {})) is None


def test_a_tie_is_an_error_that_names_both(config: Path) -> None:
    put(config, "one", "match: {hostname: a.*}\n")
    put(config, "two", "match: {hostname: .*z}\n")

    with pytest.raises(InvalidInput, match="more than one site: one and two") as caught:
        choose(detect("abcz", {}))

    assert "--site" in (caught.value.hint or "")


def test_a_match_that_cannot_be_read_is_an_error_with_its_place(config: Path) -> None:
    put(config, "mine", "match: {hostname: 'a('}\n")

    with pytest.raises(InvalidInput) as caught:
        choose(detect("abcz", {}))

    (finding,) = caught.value.findings
    assert finding.mark
    assert (finding.mark.file.name, finding.mark.line) == ("mine.yaml", 2)


def test_an_unreadable_site_file_is_not_passed_over(config: Path) -> None:
    put(config, "mine").write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidInput, match="cannot tell whether this is mine"):
        choose(detect("abcz", {}))


def test_a_users_file_that_extends_the_one_it_hides_takes_over_its_match(config: Path, tmp_path: Path) -> None:
    system = tmp_path / "etc" / "sites" / "mine.yaml"
    system.parent.mkdir(parents=True)
    system.write_text(f"name: mine\nmatch: {{hostname: .*}}\n{REST}")
    put(config, "mine", rest="extends: mine\n")

    assert outcome("mine").matched


def test_the_detected_site_is_loaded_where_none_is_named(config: Path) -> None:
    put(config, "mine", f"match: {{hostname: '{HERE}'}}\n")

    assert load_site().name == "mine"
    assert load_site("local").name == "local"


def test_local_is_loaded_where_no_site_matches(config: Path) -> None:
    assert load_site().name == "local"
