"""The rule about proxies, on recorded facts."""

from __future__ import annotations

import pytest

from hidl_cli.doctor.probes.network import Network
from hidl_cli.doctor.rules.network import RULES
from tests.doctor.cases import Case, both_ways, named, severity

PROXY = {"http_proxy": "proxy.site.example"}

CASES: list[Case] = [
    ("HD062", "it catches localhost", Network(PROXY, ("localhost",)), "warning"),
    ("HD062", "it leaves this host out", Network(PROXY, (), "localhost,127.0.0.1,node1"), None),
]


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_rule_finds_what_it_is_for(case: Case) -> None:
    id, _, facts, expected = case
    assert severity(RULES, id, facts) == expected


def test_every_rule_is_tried_both_ways() -> None:
    assert both_ways(RULES, CASES)


def test_what_no_proxy_says_already_is_kept_in_the_line_that_mends() -> None:
    (finding,) = RULES.findings(Network(PROXY, ("localhost", "node1"), ".site.example"))
    assert finding.mend.startswith("export no_proxy=.site.example,localhost,node1 ")
