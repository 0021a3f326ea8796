"""What replies mean, as a table; and that no reply makes it stumble."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_adapter.sinks import BatchRefusedError, RowsRefusedError, SinkUnavailableError
from broker_adapter.sinks.http.replies import Reply, check_error_of, error_of, retry_after_s

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADDRESS = "http://service/rows"
SENT = [0, 1, 3]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        *[(status, None) for status in (200, 201, 202, 204)],
        *[(status, BatchRefusedError) for status in (400, 413, 422)],
        *[
            (status, SinkUnavailableError)
            for status in (301, 308, 401, 403, 404, 405, 408, 409, 410, 415, 425, 429, 431, 500, 502, 503, 504, 599)
        ],
    ],
)
def test_each_status_means_what_is_documented(status: int, kind: type[Exception] | None) -> None:
    error = error_of(Reply(status, body=b"because"), ADDRESS, SENT, NOW)
    assert error is None if kind is None else type(error) is kind
    if error is not None:
        assert ADDRESS in str(error)
        assert str(status) in str(error)


def test_refused_rows_are_reported_by_their_place_in_the_batch() -> None:
    body = b'{"refused": [{"index": 2, "reason": "too\\nold"}, {"index": 0}], "more": 1}'
    error = error_of(Reply(207, body=body), ADDRESS, SENT, NOW)
    assert isinstance(error, RowsRefusedError)
    assert [(each.index, each.reason) for each in error.refusals] == [(0, "no reason given"), (3, "too old")]


def test_nothing_refused_is_all_taken() -> None:
    assert error_of(Reply(207, body=b'{"refused": []}'), ADDRESS, SENT, NOW) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"refused": [{"index": 3}]}',
        b'{"refused": [{"index": -1}]}',
        # These two once ended the broker: the decoder raises errors of its own for neither.
        pytest.param(b'{"refused": [{"index": 0, "reason": "caf\xe9"}]}', id="a reason that is no UTF-8"),
        pytest.param(b'{"refused": [], "more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="nested deeply"),
    ],
)
def test_a_list_that_cannot_be_right_is_an_outage(body: bytes) -> None:
    error = error_of(Reply(207, body=body), ADDRESS, SENT, NOW)
    assert isinstance(error, SinkUnavailableError)
    assert "207" in str(error)


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("0", 0.0),
        ("120", 120.0),
        ("9999999999", 3600.0),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60.0),
        ("Thu, 01 Jan 2026 00:01:00 -0000", 60.0),
        ("Thu, 01 Jan 2015 00:00:00 GMT", 0.0),
        ("", None),
        ("-5", None),
        ("soon", None),
        # Dates with numbers that no calendar has once ended the broker.
        ("Thu, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Thu, 01 Jan 2026 99999999999999999999:00:00 GMT", None),
        ("Thu, 01 Jan 2026 00:00:00 +99999999999999999999", None),
        ("Thu, 01 Jan 2026 00:00:00 +9999", None),
        ("Fri, 31 Dec 9999 23:59:59 -2359", 3600.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str, wait_s: float | None) -> None:
    assert retry_after_s(text, NOW) == wait_s
    error = error_of(Reply(503, retry_after=text), ADDRESS, SENT, NOW)
    assert isinstance(error, SinkUnavailableError)
    assert error.retry_after_s == wait_s


@given(st.integers(100, 599), st.text(), st.text(), st.binary())
def test_no_reply_makes_it_stumble(status: int, retry_after: str, location: str, body: bytes) -> None:
    reply = Reply(status, retry_after, location, body)
    error = error_of(reply, ADDRESS, SENT, NOW)
    assert error is None or ("\n" not in str(error) and len(str(error)) < 1000)
    check_error_of(reply, ADDRESS, NOW, must_succeed=True)


@given(st.integers(0, 9999), st.integers(0, 99), st.integers(0, 99), st.sampled_from(["GMT", "-0000", "+9999"]))
def test_no_date_makes_it_stumble(year: int, day: int, hour: int, zone: str) -> None:
    wait_s = retry_after_s(f"Thu, {day} Jan {year} {hour}:00:00 {zone}", NOW)
    assert wait_s is None or 0 <= wait_s <= 3600


@pytest.mark.parametrize("status", [200, 204, 301, 403, 404, 405, 500, 501])
def test_a_service_that_does_not_know_options_is_well(status: int) -> None:
    assert check_error_of(Reply(status), ADDRESS, NOW, must_succeed=False) is None


@pytest.mark.parametrize("status", [401, 429, 502, 503, 504])
def test_what_batches_would_meet_too_is_an_outage(status: int) -> None:
    assert check_error_of(Reply(status), ADDRESS, NOW, must_succeed=False) is not None


@pytest.mark.parametrize("status", [301, 403, 404, 500])
def test_an_address_for_health_must_answer_with_success(status: int) -> None:
    assert check_error_of(Reply(status), ADDRESS, NOW, must_succeed=True) is not None


def test_where_a_redirect_points_is_reported_without_its_query() -> None:
    error = error_of(Reply(302, location="https://elsewhere/x?token=secret"), ADDRESS, SENT, NOW)
    assert "https://elsewhere/x;" in str(error)
    assert "secret" not in str(error)
