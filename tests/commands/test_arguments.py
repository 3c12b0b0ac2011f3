"""Times as users write them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from hidl_cli.commands.arguments import limit_in_seconds, moment
from hidl_cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-31T18:00:00+00:00", "2026-01-31T18:00:00"),
        ("2026-01-31T18:00:00Z", "2026-01-31T18:00:00"),
        ("2026-01-31T18:00+02:00", "2026-01-31T16:00:00"),
    ],
)
def test_a_time_with_a_zone_is_that_time(text: str, utc: str) -> None:
    assert moment(text) == datetime.fromisoformat(utc).replace(tzinfo=timezone.utc)


def test_a_date_begins_at_midnight_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-3")  # POSIX: three hours east of Greenwich
    time.tzset()
    try:
        assert moment("2026-01-31") == datetime(2026, 1, 30, 21, tzinfo=timezone.utc)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(("text", "ago"), [("90m", 1.5), ("12h", 12), ("30d", 720), ("2w", 336)])
def test_an_age_is_counted_from_now(text: str, ago: float) -> None:
    before = datetime.now(timezone.utc)
    found = moment(text)
    assert before <= found + timedelta(hours=ago) <= datetime.now(timezone.utc)


@pytest.mark.parametrize("text", ["", "d", "-3d", "3y", "yesterday", "2026-13-01", "9" * 30 + "w", "²d", "1.5h"])
def test_what_is_not_a_time_is_reported(text: str) -> None:
    with pytest.raises(UsageError, match="invalid time"):
        moment(text)


@pytest.mark.parametrize("text", ["0", "00:00", "00:00:00", "0-00:00:00"])
def test_a_time_limit_must_be_positive(text: str) -> None:
    with pytest.raises(UsageError, match="the time limit must be positive") as error:
        limit_in_seconds(text)
    assert "02:00:00" in str(error.value.hint)
