"""A response that is not there yet, and one that never can be."""

from __future__ import annotations

import pytest

from lowtide.broker.pending import Pending


def test_a_failure_is_reported_as_no_answer() -> None:
    pending: Pending[str] = Pending()
    told: list[str | None] = []
    pending.listen(told.append)
    pending.fail()
    assert told == [None]


def test_a_failure_without_a_listener_is_reported_later() -> None:
    pending: Pending[str] = Pending()
    pending.fail()
    told: list[str | None] = []
    pending.listen(told.append)
    assert told == [None]


def test_an_answer_that_could_not_be_sent_can_still_fail() -> None:
    """The listener raises while it writes the answer, and then gets a failure, so the connection does not hang."""
    pending: Pending[str] = Pending()
    told: list[str | None] = []

    def listen(response: str | None) -> None:
        if response is not None:
            raise ValueError(response)
        told.append(response)

    pending.listen(listen)
    with pytest.raises(ValueError, match="no bytes for this"):
        pending.complete("no bytes for this")
    pending.fail()
    assert told == [None]


def test_the_failure_of_an_abandoned_answer_is_not_reported() -> None:
    pending: Pending[str] = Pending()
    told: list[str | None] = []
    pending.listen(told.append)
    pending.abandon()
    pending.fail()
    assert told == []
