"""When a message is due: never early, whatever form the time is given in."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_redis_plus.broker.arguments.eta import (
    MAX_DELAY_MS,
    MAX_ETA_MS,
    check_new_time,
    delay_to_ms,
    eta_to_ms,
    time_of_ms,
)
from celery_redis_plus.errors import InvalidEta

#: 2030-01-31T12:00:00 UTC
NOON_MS = 1_896_091_200_000
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def system_zone(monkeypatch):
    """Put this process into the time zone of India, UTC+05:30, without daylight saving."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "value",
    [
        "2030-01-31T12:00:00+00:00",
        "2030-01-31T12:00:00Z",
        "2030-01-31T12:00:00.000000+00:00",
        "2030-01-31T13:00:00+01:00",
        "2030-01-31T06:30:00-05:30",
        "2030-01-31 12:00:00+00:00",
        "20300131T120000Z",
        "2030-01-31T12:00+00:00",
        datetime(2030, 1, 31, 12, tzinfo=UTC),
        datetime(2030, 1, 31, 13, tzinfo=BERLIN),
        NOON_MS // 1000,
        NOON_MS / 1000,
    ],
)
def test_forms_of_one_moment(value):
    assert eta_to_ms(value, naive_is_utc=True) == NOON_MS
    assert eta_to_ms(value, naive_is_utc=False) == NOON_MS


@pytest.mark.parametrize("value", ["2030-01-31T12:00:00", "2030-01-31 12:00", datetime(2030, 1, 31, 12)])  # noqa: DTZ001
@pytest.mark.usefixtures("system_zone")
def test_naive_time_follows_enable_utc(value):
    assert eta_to_ms(value, naive_is_utc=True) == NOON_MS
    assert eta_to_ms(value, naive_is_utc=True, tz=BERLIN) == NOON_MS
    assert eta_to_ms(value, naive_is_utc=False) == NOON_MS - 5.5 * 3_600_000
    assert eta_to_ms(value, naive_is_utc=False, tz=BERLIN) == NOON_MS - 3_600_000


def test_date_alone_is_its_midnight():
    assert eta_to_ms("2030-01-31", naive_is_utc=True) == NOON_MS - 12 * 3_600_000


@pytest.mark.parametrize(
    ("fraction", "late_ms"),
    [
        (".001", 1),
        (".0005", 1),
        (".000001", 1),
        (".0000001", 1),
        (".000000001", 1),
        (".0010000", 1),
        (".9990001", 1000),
    ],
)
def test_fractions_of_a_millisecond_are_rounded_up(fraction, late_ms):
    assert eta_to_ms(f"2030-01-31T12:00:00{fraction}+00:00", naive_is_utc=True) == NOON_MS + late_ms


def test_float_is_read_to_the_microsecond():
    assert eta_to_ms(1_700_000_000.123, naive_is_utc=True) == 1_700_000_000_123
    assert eta_to_ms(1_700_000_000.1231, naive_is_utc=True) == 1_700_000_000_124


@given(
    st.datetimes(datetime(1970, 1, 2), datetime(2286, 11, 1)),  # noqa: DTZ001
    st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
def test_never_early_and_at_most_a_millisecond_late(moment, zone):
    moment = moment.replace(tzinfo=zone)
    for value in (moment, moment.isoformat()):
        late = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=eta_to_ms(value, naive_is_utc=True)) - moment
        assert timedelta(0) <= late < timedelta(milliseconds=1)


def test_limits_are_the_epoch_and_what_a_score_holds():
    assert eta_to_ms("1970-01-01T00:00:00Z", naive_is_utc=True) == 0
    assert eta_to_ms("2286-11-20T17:46:39.999Z", naive_is_utc=True) == MAX_ETA_MS
    with pytest.raises(InvalidEta):
        eta_to_ms("2286-11-20T17:46:39.9991Z", naive_is_utc=True)


@pytest.mark.parametrize(
    "value",
    [
        None, True, "",
        "tomorrow", "5", "1700000000", "2030-13-01", "2030-01-31T25:00:00", [], {}, b"2030-01-31",
        -1, -0.5, float("nan"), float("inf"), float("-inf"), 1e308, 10**400, "1969-12-31T23:59:59Z",
        datetime(1969, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC),
        datetime.max, datetime.min,  # noqa: DTZ901
        "9999-12-31T23:59:59", "\ud800", "x" * 10_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("naive_is_utc", [True, False])
def test_what_is_no_time_is_refused_with_the_value_and_what_is_allowed(value, naive_is_utc):
    with pytest.raises(InvalidEta) as caught:
        eta_to_ms(value, naive_is_utc=naive_is_utc)
    text = str(caught.value)
    assert text.startswith(f"eta {repr(value)[:100]}")
    assert "ISO 8601" in text
    assert len(text) < 400


@pytest.mark.parametrize(
    ("value", "delay_ms"),
    [
        (0, 0),
        (1500, 1500),
        ("1500", 1500),
        (" 7 ", 7),
        (1500.0, 1500),
        (0.2, 1),
        (MAX_DELAY_MS, MAX_DELAY_MS),
    ],
)
def test_delay(value, delay_ms):
    result = delay_to_ms(value)
    assert result == delay_ms
    assert isinstance(result, int)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -1,
        "-1",
        -0.5,
        "",
        "1.5",
        "soon",
        "٣",
        float("nan"),
        float("inf"),
        MAX_DELAY_MS + 1,
        [],
        "9" * 5000,
    ],
)
def test_bad_delay_is_refused_with_the_value_and_what_is_allowed(value):
    with pytest.raises(InvalidEta) as caught:
        delay_to_ms(value)
    assert str(caught.value).startswith(f"x-delay {repr(value)[:100]}")
    assert "milliseconds from 0" in str(caught.value)


@pytest.mark.parametrize("eta", [0, MAX_ETA_MS, "+0", f"+{MAX_DELAY_MS}"])
def test_a_new_time_is_within_what_a_queue_can_order(eta):
    check_new_time(eta)


@pytest.mark.parametrize("eta", [-1, MAX_ETA_MS + 1, f"+{MAX_DELAY_MS + 1}"])
def test_a_new_time_that_is_out_of_range_is_refused(eta):
    with pytest.raises(InvalidEta, match="is out of range; allowed are 0 to"):
        check_new_time(eta)


def test_a_stored_time_that_no_datetime_reaches_is_the_last_one():
    assert time_of_ms(NOON_MS) == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert [time_of_ms(far) for far in (10**15, 10**20, 10**300)] == [datetime.max.replace(tzinfo=UTC)] * 3
    assert time_of_ms(-(10**20)) == datetime(1970, 1, 1, tzinfo=UTC)
