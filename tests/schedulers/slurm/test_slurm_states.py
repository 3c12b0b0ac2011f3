"""Slurm's words for states."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hidl_cli.record.state import State
from hidl_cli.schedulers.slurm.states import state_of


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("PENDING", State.PENDING),
        ("CONFIGURING", State.PENDING),
        ("REQUEUE_HOLD", State.PENDING),
        ("RUNNING", State.RUNNING),
        ("SUSPENDED", State.RUNNING),
        ("COMPLETING", State.RUNNING),
        ("COMPLETED", State.COMPLETED),
        ("FAILED", State.FAILED),
        ("CANCELLED", State.CANCELLED),
        ("CANCELLED by 1000", State.CANCELLED),
        ("CANCELLED+", State.CANCELLED),
        ("TIMEOUT", State.TIMEOUT),
        ("DEADLINE", State.TIMEOUT),
        ("NODE_FAIL", State.NODE_FAIL),
        ("BOOT_FAIL", State.NODE_FAIL),
        ("OUT_OF_MEMORY", State.OUT_OF_MEMORY),
        ("PREEMPTED", State.PREEMPTED),
    ],
)
def test_each_word_is_a_state(words: str, state: State) -> None:
    assert state_of(words) is state


@given(st.text())
def test_no_other_word_ends_a_run(words: str) -> None:
    assert state_of(f"X{words}") is State.RUNNING
