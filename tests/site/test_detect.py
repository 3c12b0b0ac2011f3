"""Which site this is: each site's conditions, why they hold or not, and which one wins."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from hidl_cli.errors import InvalidInput
from hidl_cli.site.detect import Detection, choose, detect
from hidl_cli.site.load import explained, load_site
from hidl_cli.site.probes.host import ThisHost, cluster, schedulers
from tests.site.recording import DIRECTORY, RecordedHost

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


def host(hostname: str, environment: Mapping[str, str] | None = None, **answers: str) -> RecordedHost:
    """A host; ``answers``: what its `scontrol show config` (``scontrol``) or `lsid` prints."""
    commands = {"scontrol": "scontrol show config", "lsid": "lsid"}
    return RecordedHost(
        DIRECTORY / "none",
        hostname,
        environment or {},
        programs={program: f"/usr/bin/{program}" for program in answers},
        answers={commands[program]: answer for program, answer in answers.items()},
    )


def outcome(site: str, hostname: str = "login1.frontera.edu", **environment: str) -> Detection:
    return next(found for found in detect(host(hostname, environment)) if found.site == site)


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
        ("", False, ("no `match` in its file",)),
        ("# match: {hostname: .*}\n", False, ("no `match` in its file",)),
        ("match: null\n", False, ("no `match` in its file",)),
    ],
)
def test_every_condition_reports_why_it_holds_or_not(
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

    assert choose(detect(host("c1.frontera", {"QUEUE": "rtx-dev"}))) == "cluster-gpu"
    assert choose(detect(host("c1.frontera", {"QUEUE": "normal"}))) == "cluster"
    assert choose(detect(host("laptop"))) is None


def test_a_tie_is_an_error_that_names_both(config: Path) -> None:
    put(config, "one", "match: {hostname: a.*}\n")
    put(config, "two", "match: {hostname: .*z}\n")

    with pytest.raises(InvalidInput, match="more than one site: one and two") as caught:
        choose(detect(host("abcz")))

    assert "--site" in (caught.value.hint or "")


def test_a_match_that_cannot_be_read_is_an_error_with_its_place(config: Path) -> None:
    put(config, "mine", "match: {hostname: 'a('}\n")

    with pytest.raises(InvalidInput) as caught:
        choose(detect(host("abcz")))

    (problem,) = caught.value.problems
    assert problem.mark
    assert (problem.mark.file.name, problem.mark.line) == ("mine.yaml", 2)


def test_an_unreadable_site_file_is_not_passed_over(config: Path) -> None:
    put(config, "mine").write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidInput, match="cannot determine whether this is mine"):
        choose(detect(host("abcz")))


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


CONFIG = (
    "Configuration data as of 2026-11-21T10:06:02\nClusterName             = {}\nSLURM_VERSION           = 22.05.8\n"
)
LSID = "IBM Spectrum LSF Standard 10.1.0.9, Oct 16 2019\n\nMy cluster name is {}\nMy master name is batch1\n"
NAMED = "the scheduler's cluster name"


@pytest.mark.parametrize(
    ("here", "matched", "reason"),
    [
        (host("c1", {"SLURM_CLUSTER_NAME": "ampere"}), True, f"{NAMED} 'ampere' matches 'ampere'"),
        (host("c1", scontrol=CONFIG.format("ampere")), True, f"{NAMED} 'ampere' matches 'ampere'"),
        (host("c1", scontrol=CONFIG.format("ampere2")), False, f"{NAMED} 'ampere2' does not match 'ampere'"),
        (host("c1", lsid=LSID.format("ampere")), True, f"{NAMED} 'ampere' matches 'ampere'"),
        (host("c1", {"SLURM_CLUSTER_NAME": "x"}, scontrol=CONFIG.format("ampere")), False, "'x' does not match"),
        (host("c1"), False, f"{NAMED} is unknown: no scheduler's program (scontrol, lsid,"),
        (host("c1", scontrol=""), False, "is unknown: `scontrol show config` did not respond within 3 s"),
    ],
    ids=["in a job", "scontrol", "another cluster", "lsid", "the environment wins", "no scheduler", "no answer"],
)
def test_the_cluster_is_what_the_scheduler_calls_it(
    config: Path, here: RecordedHost, matched: bool, reason: str
) -> None:
    put(config, "mine", "match: {cluster: ampere}\n")

    found = next(one for one in detect(here) if one.site == "mine")

    assert (found.matched, reason in found.reasons[0]) == (matched, True), found.reasons


def test_the_scheduler_is_not_asked_where_no_site_needs_its_answer(config: Path) -> None:
    put(config, "by-name", "match: {hostname: other, cluster: ampere}\n")
    put(config, "by-variable", "match: {env: {SYSTEM: x}, cluster: ampere}\n")
    put(config, "without", "match: {hostname: c1}\n")
    here = host("c1", scontrol=CONFIG.format("ampere"))

    assert choose(detect(here)) == "without"
    assert here.asked == []


def test_the_scheduler_is_asked_once_for_all_sites(config: Path) -> None:
    for name in ("one", "two", "three"):
        put(config, name, f"match: {{cluster: {name}}}\n")
    here = host("c1", scontrol=CONFIG.format("two"))

    assert choose(detect(here)) == "two"
    assert here.asked == ["scontrol show config"]


def test_a_thorough_look_asks_where_a_site_names_its_cluster(config: Path) -> None:
    put(config, "mine", "match: {hostname: other, cluster: ampere}\n")
    here = host("c1", scontrol=CONFIG.format("ampere"))
    reasons = {
        look: next(o for o in detect(here, thorough=look) if o.site == "mine").reasons[1] for look in (False, True)
    }

    assert reasons == {
        False: f"{NAMED} was not queried: another condition does not match",
        True: f"{NAMED} 'ampere' matches 'ampere'",
    }


def test_a_cluster_that_is_not_a_regular_expression_is_an_error_with_its_place(config: Path) -> None:
    put(config, "mine", "match: {cluster: 'a('}\n")

    with pytest.raises(InvalidInput) as caught:
        choose(detect(host("abcz")))

    assert [problem.path for problem in caught.value.problems] == [("match", "cluster")]


def test_a_real_scontrol_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\nsleep 600\n")
    program.chmod(0o755)
    monkeypatch.setattr("hidl_cli.site.probes.host.SECONDS", 0.2)
    here = ThisHost({"PATH": f"{tmp_path}:{os.environ['PATH']}"})

    assert cluster(here).name is None
    assert "0.2 s" in here.failures[0]


def test_the_explanation_names_the_ground_the_rivals_and_the_way_out(config: Path) -> None:
    put(config, "cluster", "match: {hostname: c.*}\n")
    put(config, "cluster-gpu", "match: {hostname: c.*, env: {QUEUE: rtx}}\n")
    outcomes = detect(host("c1", {"QUEUE": "rtx"}))

    assert explained("cluster-gpu", outcomes, {}).splitlines() == [
        "this is cluster-gpu: 2 of 2 conditions match (host name 'c1' matches 'c.*'; $QUEUE 'rtx' matches 'rtx')",
        "also matching, with fewer conditions: cluster",
        "without this match, hidl would use `cluster`; --site overrides it",
    ]


def test_one_condition_alone_is_said_to_be_weak(config: Path) -> None:
    put(config, "cluster", "match: {hostname: c.*}\n")

    assert "a single condition may also match other machines" in explained("cluster", detect(host("c1")), {})


def test_a_scheduler_on_an_unknown_machine_leads_to_a_draft() -> None:
    assert explained(None, (), schedulers(host("c1", scontrol=""))).splitlines() == [
        "no site matches; hidl uses `local`, the machine that it runs on",
        "found a scheduler: Slurm (scontrol); `hidl site new` drafts a site file for this cluster",
    ]
