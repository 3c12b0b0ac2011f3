"""The rule about proxies, on recorded facts."""

from __future__ import annotations

import urllib.request

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.doctor.rules.host import NETWORK_RULES, Network, is_excluded, probe_network
from tests.doctor.cases import Case, has_both_ways, named, severity
from tests.doctor.machines import context, host

OWN = ("localhost", "127.0.0.1", "node1")
WORDS = st.lists(st.sampled_from(["localhost", ".example", "node1.example", "example", "127.0.0.1", "1"]), max_size=4)


@pytest.mark.parametrize(
    ("no_proxy", "caught"),
    [
        ("", OWN),
        ("*", ()),
        ("localhost,127.0.0.1", ("node1",)),
        (" localhost , 127.0.0.1,NODE1 ", ()),
    ],
)
def test_what_a_proxy_catches(no_proxy: str, caught: tuple[str, ...]) -> None:
    assert probe_network(context(host(http_proxy="http://proxy:3128", no_proxy=no_proxy))).affected == caught


def test_without_a_proxy_nothing_is_caught() -> None:
    assert probe_network(context(host(no_proxy="example", http_proxy=""))).affected == ()


def test_a_proxys_password_is_not_shown() -> None:
    found = probe_network(context(host(HTTPS_PROXY="http://me:secret@proxy.example:3128")))
    assert found.proxies == {"HTTPS_PROXY": "proxy.example"}


@given(st.sampled_from(["localhost", "node1.example", "example", "127.0.0.1"]), WORDS)
def test_a_host_is_left_out_where_pythons_urllib_leaves_it_out(name: str, words: list[str]) -> None:
    no_proxy = ",".join(words)
    theirs = urllib.request.proxy_bypass_environment(name, {"no": no_proxy})  # type: ignore[attr-defined]
    assert is_excluded(name, no_proxy) == bool(theirs)


PROXY = {"http_proxy": "proxy.site.example"}

CASES: list[Case] = [
    ("HD062", "it catches localhost", Network(PROXY, ("localhost",)), "warning"),
    ("HD062", "it leaves this host out", Network(PROXY, (), "localhost,127.0.0.1,node1"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_rule(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(NETWORK_RULES, id, facts) == expected


def test_every_rule_has_positive_and_negative_cases() -> None:
    assert has_both_ways(NETWORK_RULES, CASES)


def test_what_no_proxy_says_already_is_kept_in_the_line_that_fixes() -> None:
    (finding,) = NETWORK_RULES.findings(Network(PROXY, ("localhost", "node1"), ".site.example"))
    assert finding.fix.startswith("export no_proxy=.site.example,localhost,node1 ")
