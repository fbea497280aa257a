"""The guards of appends whose transactions are being verified, and where a producer's first batch may begin."""

from __future__ import annotations

from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.control_records import ControlRecord, ControlRecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import read_batch_header
from lowtide.protocol.types import NO_SEQUENCE
from lowtide.storage.log.producers.producer_state import ACCEPTED, ProducerStateManager
from lowtide.storage.log.producers.verifications import Verification, Verifications

from .producing import header_of

OUT_OF_ORDER = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def begin(verifications: Verifications, epoch: int = 5, sequence: int = 0, *, adds_itself: bool = True) -> Verification:
    return verifications.begin(7, epoch, sequence, adds_itself=adds_itself, now_ms=1)


def mark(state: ProducerStateManager, epoch: int, offset: int) -> None:
    state.end_transaction(
        7, epoch, ControlRecord(ControlRecordType.COMMIT, 1), marker_offset=offset, timestamp=1, now_ms=1
    )


def append(state: ProducerStateManager, epoch: int, sequence: int, offset: int) -> None:
    state.update(header_of(7, epoch, sequence, is_transactional=True), base_offset=offset, now_ms=1)


def test_the_marker_of_the_transaction_before_leaves_the_guard_of_the_next_one() -> None:
    """The marker has the next transaction's epoch.

    A later marker ends the guard, and so does any marker if the client's epoch stays.
    """
    state = ProducerStateManager()
    append(state, 4, 0, 10)
    guard = begin(state.verifications)
    mark(state, 5, 11)
    assert state.verifications.find(7) is guard
    mark(state, 6, 12)
    assert state.verifications.find(7) is None
    begin(state.verifications, 6, adds_itself=False)
    mark(state, 6, 13)
    assert state.verifications.find(7) is None


def test_a_guard_serves_all_batches_until_the_first_is_appended() -> None:
    state = ProducerStateManager()
    guard = begin(state.verifications)
    assert begin(state.verifications, sequence=3) is guard
    append(state, 5, 0, 0)
    assert state.verifications.find(7) is None


def test_a_later_epoch_has_its_own_guard_and_an_earlier_one_none() -> None:
    verifications = Verifications(10)
    first = begin(verifications)
    second = begin(verifications, epoch=6, sequence=2)
    assert second is not first
    assert begin(verifications, epoch=5) is second
    assert second.lowest_sequence == 2


def test_a_later_batch_does_not_become_the_beginning() -> None:
    """The first batch was refused with a retriable error. Source: Kafka's `VerificationStateEntry`."""
    for adds_itself in (True, False):
        state = ProducerStateManager()
        begin(state.verifications, sequence=0, adds_itself=adds_itself)
        begin(state.verifications, sequence=3, adds_itself=adds_itself)
        assert state.check(7, 5, 3, 1, is_transactional=True) is OUT_OF_ORDER
        assert state.check(7, 5, 0, 3, is_transactional=True) is ACCEPTED
        assert state.check(7, 5, NO_SEQUENCE, 1, is_transactional=True) is ACCEPTED, "a coordinator's"
        assert state.check(8, 5, 3, 1, is_transactional=True) is ACCEPTED, "no guard is open for it"


def test_a_producer_that_the_log_has_forgotten_continues_unless_its_epoch_is_of_this_transaction_alone() -> None:
    for adds_itself, expected in ((True, OUT_OF_ORDER), (False, ACCEPTED)):
        state = ProducerStateManager()
        begin(state.verifications, sequence=9, adds_itself=adds_itself)
        assert state.check(7, 5, 9, 1, is_transactional=True) is expected


def test_there_are_not_more_than_so_many_and_each_expires() -> None:
    verifications = Verifications(3)
    for producer_id in range(5):
        verifications.begin(producer_id, 0, 0, adds_itself=True, now_ms=producer_id)
    assert [verifications.find(producer_id) is not None for producer_id in range(5)] == [False, False, True, True, True]
    verifications.remove_older(3)
    assert [verifications.find(producer_id) is not None for producer_id in range(5)] == [
        False,
        False,
        False,
        False,
        True,
    ]
    assert len(verifications) == 1


def test_producers_expire_with_their_verifications() -> None:
    state = ProducerStateManager(expiration_ms=lambda: 100)
    begin(state.verifications)
    state.remove_expired(101)
    assert not state.verifications


def test_what_was_refused_for_now_comes_first() -> None:
    """In a transaction or not; for a producer with state in the log the sequence check keeps the order."""
    state = ProducerStateManager()
    first, second = (read_batch_header(a_batch(sequence)) for sequence in (0, 3))
    state.note_refused(second, now_ms=1)
    state.note_refused(first, now_ms=1)
    assert state.check(7, 5, 3, 1) is OUT_OF_ORDER
    assert state.check(7, 5, 0, 3) is ACCEPTED
    state.update(header_of(7, 5, 0, 3), base_offset=0, now_ms=1)
    assert not state.verifications
    assert state.check(7, 5, 3, 1) is ACCEPTED
    state.note_refused(first, now_ms=1)
    state.note_refused(read_batch_header(build_batch([(1, None, b"v", ())])), now_ms=1)
    assert not state.verifications


def test_what_came_behind_a_refused_batch_begins_when_it_comes_once_more() -> None:
    """Another broker has got the refused one since, for its producer sends a later one again without it."""
    state = ProducerStateManager()
    first, second, third = (read_batch_header(a_batch(sequence)) for sequence in (0, 3, 4))
    state.note_refused(first, now_ms=1)
    assert [state.is_behind_refused(header) for header in (first, second, third)] == [False, True, True]
    for header in (second, third):
        assert state.check(7, 5, header.base_sequence, 1) is OUT_OF_ORDER
        state.note_refused(header, now_ms=1)
    assert state.check(7, 5, 4, 1) is OUT_OF_ORDER
    assert state.check(7, 5, 3, 1) is ACCEPTED
    state.update(header_of(7, 5, 3, 1), base_offset=0, now_ms=1)
    assert state.check(7, 5, 4, 1) is ACCEPTED
    assert not any(state.is_behind_refused(header) for header in (first, second, third))


def test_what_came_behind_a_refused_batch_waits_for_it_when_that_comes_once_more() -> None:
    """Refused again, it must come again; while its transaction is verified it is under way."""
    for verify in (False, True):
        state = ProducerStateManager()
        first, second = (read_batch_header(a_batch(sequence)) for sequence in (0, 3))
        for header in (first, second):
            state.note_refused(header, now_ms=1)
        if verify:
            begin(state.verifications, sequence=0)
        else:
            state.note_refused(first, now_ms=1)
        assert state.check(7, 5, 3, 1) is OUT_OF_ORDER
        assert state.is_behind_refused(second) is not verify
        state.note_refused(second, now_ms=1)
        assert (state.check(7, 5, 3, 1) is OUT_OF_ORDER) is verify
        assert state.check(7, 5, 0, 3) is ACCEPTED


def test_what_came_behind_a_refused_batch_of_an_older_epoch_waits_for_nothing() -> None:
    state = ProducerStateManager()
    state.note_refused(read_batch_header(a_batch(3)), now_ms=1)
    begin(state.verifications, epoch=6, sequence=0)
    state.note_refused(read_batch_header(a_batch(4)), now_ms=1)
    assert not state.is_behind_refused(read_batch_header(a_batch(4)))
    assert state.check(7, 6, 3, 1) is OUT_OF_ORDER


def test_a_verification_of_a_batch_that_was_refused_before_outlives_the_marker_of_the_transaction_before() -> None:
    state = ProducerStateManager()
    state.note_refused(read_batch_header(a_batch(0)), now_ms=1)
    guard = begin(state.verifications)
    mark(state, 5, 11)
    assert state.verifications.find(7) is guard


def a_batch(sequence: int) -> bytes:
    return build_batch([(1, None, b"v", ())], producer_id=7, producer_epoch=5, base_sequence=sequence)
