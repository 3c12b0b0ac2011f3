"""What is asked of LSF: the ``#BSUB`` lines, and nothing that a value could smuggle into them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.errors import InvalidInput
from hidl_cli.launch.placement import Allocation
from hidl_cli.schedulers.lsf import header, options
from hidl_cli.site.schema import Policies

SUMMIT = """\
#BSUB -nnodes 256
#BSUB -W 2:00
#BSUB -P ABC123
#BSUB -q batch
#BSUB -J resnet50
#BSUB -o lsf.log
#BSUB -alloc_flags "gpumps smt1"
"""
EVERYTHING = """\
#BSUB -nnodes 1
#BSUB -W 0:01
#BSUB -P ABC123
#BSUB -q debug
#BSUB -U maintenance#12
#BSUB -J x
#BSUB -o lsf.log
#BSUB -x
#BSUB -env all
"""


def policies(**given: Any) -> Policies:
    return Policies.model_validate(given)


def allocation(**asked: Any) -> Allocation:
    return Allocation(**({"job_name": "resnet50", "nodes": 4, "ranks_per_node": 6} | asked))


def lines(asked: Allocation, site: Policies | None = None) -> list[str]:
    return list(header(asked, site or policies()))


def test_a_job_of_summit() -> None:
    asked = allocation(nodes=256, time_limit=7200.0, account="ABC123", queue="batch", gpus_per_node=6)
    assert lines(asked, policies(directives=['-alloc_flags "gpumps smt1"'])) == SUMMIT.splitlines()


def test_an_account_of_livermores_is_a_user_group() -> None:
    assert "#BSUB -G guests" in lines(allocation(account="guests"), policies(account_option="-G"))


def test_all_that_lsf_has_a_word_for() -> None:
    asked = allocation(
        job_name="x", nodes=1, time_limit=1.0, account="ABC123", queue="debug", reservation="maintenance#12"
    )
    assert lines(asked, policies(exclusive=True, export="all")) == EVERYTHING.splitlines()


def test_what_nobody_asks_for_is_left_to_lsf() -> None:
    assert lines(allocation()) == ["#BSUB -nnodes 4", "#BSUB -J resnet50", "#BSUB -o lsf.log"]


@pytest.mark.parametrize(
    ("policy", "value"),
    [("account", "ABC123"), ("partition", "batch"), ("reservation", "r1"), ("time", 60.0)],
)
def test_what_the_site_refuses_is_left_out(policy: str, value: Any) -> None:
    name = {"partition": "queue", "time": "time_limit"}.get(policy, policy)
    assert lines(allocation(**{name: value}), policies(**{policy: "never"})) == lines(allocation())


@pytest.mark.parametrize("policy", ["account", "partition", "reservation", "time"])
def test_what_the_site_requires_and_nobody_gave_is_left_to_the_plan_to_report(policy: str) -> None:
    assert lines(allocation(), policies(**{policy: "required"})) == lines(allocation())


@pytest.mark.parametrize("asked", [{"qos": "high"}, {"constraint": "v100"}])
def test_what_lsf_has_no_option_for_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="LSF has no option for"):
        lines(allocation(**asked))


def test_memory_is_refused_where_the_site_has_it_asked_for() -> None:
    with pytest.raises(InvalidInput, match="memory per node"):
        lines(allocation(memory_gib=100.0), policies(memory="mem"))


def test_a_form_of_slurms_for_gpus_is_a_mistake_of_the_site() -> None:
    with pytest.raises(InvalidInput, match=r"policies\.gpus"):
        lines(allocation(), policies(gpus="gres"))


@given(st.floats(1, 1e7))
def test_the_run_limit_is_never_shorter_than_asked_and_less_than_a_minute_longer(seconds: float) -> None:
    (line,) = [line for line in lines(allocation(time_limit=seconds)) if line.startswith("#BSUB -W ")]
    hours, minutes = line.removeprefix("#BSUB -W ").split(":")
    assert (int(hours) * 60 + int(minutes), int(minutes) < 60) == (math.ceil(seconds / 60), True)


@given(st.text(), st.sampled_from(["job_name", "account", "queue", "reservation"]))
def test_a_value_is_one_word_of_its_own_line_or_is_refused(value: str, name: str) -> None:
    try:
        written = lines(allocation(**{name: value}))
    except InvalidInput:
        return
    letter = {"job_name": "-J", "account": "-P", "queue": "-q", "reservation": "-U"}[name]
    words = options("\n".join(written))
    assert (words.count(letter), words[words.index(letter) + 1], value.startswith("-")) == (1, value, False)


@given(st.text())
def test_a_job_name_never_makes_an_array(value: str) -> None:
    try:
        written = lines(allocation(job_name=value))
    except InvalidInput:
        return
    assert not set("[]%") & set("".join(written))


def test_the_options_are_read_back_as_words() -> None:
    script = '#!/bin/bash\n# run\n#BSUB -nnodes 2\n\n#BSUB -alloc_flags "gpumps smt1"\nset -e\n'
    assert options(script) == ["-nnodes", "2", "-alloc_flags", "gpumps smt1"]


@given(st.text(), st.sampled_from(["", " ", "\t"]))
def test_a_line_of_a_value_never_becomes_an_option(value: str, before: str) -> None:
    script = f"#!/bin/bash\n#BSUB -nnodes 2\nprintf '%s' '\n{before}#BSUB {value}'\n"
    with pytest.raises(InvalidInput, match="LSF would read it as an option"):
        options(script)
