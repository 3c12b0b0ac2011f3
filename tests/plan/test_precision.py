"""The option --precision."""

from __future__ import annotations

import pytest

from hidl_cli.errors import UsageError
from hidl_cli.plan.options import RunOptions


@pytest.mark.parametrize(
    ("text", "value"), [(None, None), ("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025), ("100%", 1.0), ("1", 1.0)]
)
def test_a_precision_is_a_share_or_in_percent(text: str | None, value: float | None) -> None:
    assert RunOptions(precision=text).required_precision == value


@pytest.mark.parametrize("text", ["", "%", "5", "0", "0%", "-5%", "101%", "nan", "inf%", "five", "5%%"])
def test_any_other_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid precision"):
        _ = RunOptions(precision=text).required_precision
