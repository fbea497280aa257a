"""The guarantees of a producer on any network: no record is lost, reordered, or duplicated by retries."""

from __future__ import annotations

import random
from collections import deque

import pytest

from lowtide.pipeline.outbox import Limits, Outbox, ProduceAnswer
from lowtide.pipeline.partition_batches import PRODUCER_EPOCH_MAX, ProduceError, ProducerBatch
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import check_crc, iterate_records, read_batch_header
from lowtide.protocol.types import TopicPartition
from tests.each import each

PLACE = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
LEADERS = {PLACE: 1, OTHER: 1}


def batch_of(*values: int) -> bytearray:
    return bytearray(build_batch([(1000, None, b"%d" % value, ()) for value in values]))


def values_of(records: bytes) -> list[int]:
    return [int(record.value or b"") for record in iterate_records(records, max_bytes=1 << 20)]


def split_in_two(batch: ProducerBatch) -> list[ProducerBatch]:
    values = values_of(batch.records)
    half = len(values) // 2
    parts = (values[:half], values[half:])
    return [
        ProducerBatch(place=batch.place, records=batch_of(*part), record_count=len(part), deadline_ms=batch.deadline_ms)
        for part in parts
    ]


def outbox(**limits: int) -> Outbox:
    return Outbox(limits=Limits(**limits), split=split_in_two, backoff=rest_ms, producer_id=7, producer_epoch=0)


def known(box: Outbox) -> None:
    """Brokers have acknowledged a batch of each partition before: several may be in flight."""
    for partition in box._partitions.values():
        partition._is_known = True


def rest_ms(failures: int) -> int:
    return min(100 << (failures - 1), 1000)


def identity(batch: ProducerBatch) -> tuple[int, int, int]:
    header = read_batch_header(batch.records)
    return header.producer_id, header.producer_epoch, header.base_sequence


def take_one(box: Outbox, now_ms: int = 0) -> ProducerBatch:
    (batch,) = box.takes(1, LEADERS, now_ms)
    return batch


def test_sequences_follow_the_records_of_each_partition():
    box = outbox()
    box.add(PLACE, batch_of(1, 2, 3), 3, 0)
    box.add(OTHER, batch_of(1), 1, 0)
    box.add(PLACE, batch_of(4), 1, 0)
    known(box)
    first = box.takes(1, LEADERS, 0)
    assert [(batch.place, identity(batch)) for batch in first] == [(PLACE, (7, 0, 0)), (OTHER, (7, 0, 0))]
    assert all(check_crc(batch.records, 0, read_batch_header(batch.records)) for batch in first)
    assert identity(take_one(box)) == (7, 0, 3)


def test_sequences_continue_at_zero_behind_the_largest():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    partition = box._partitions[PLACE]
    partition._epoch_begins_at = -(2**31 - 1)
    known(box)
    assert identity(take_one(box)) == (7, 0, 2**31 - 1)
    box.add(PLACE, batch_of(2), 1, 0)
    assert identity(take_one(box)) == (7, 0, 0)


def test_five_batches_of_a_partition_are_in_flight_and_no_more():
    """A broker remembers five, and could not distinguish a sixth from a new one."""
    box = outbox()
    for value in range(7):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    sent = [take_one(box) for _ in range(5)]
    assert box.takes(1, LEADERS, 0) == []
    box.on_answer(sent[0], ProduceAnswer(code=ErrorCode.NONE), 0)
    assert values_of(take_one(box).records) == [5]


def test_the_second_batch_waits_until_the_first_is_acknowledged():
    """A new partition may refuse the first, and lead a moment later.

    Kafka's would then begin with the second (KIP-98).
    """
    box = outbox()
    for value in range(3):
        box.add(PLACE, batch_of(value), 1, 0)
    first = take_one(box)
    assert box.takes(1, LEADERS, 0) == []
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    first = take_one(box, 1000)
    assert values_of(first.records) == [0]
    assert box.takes(1, LEADERS, 1000) == []
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NONE), 1000)
    assert [values_of(take_one(box, 1000).records) for _ in range(2)] == [[1], [2]]


def test_lost_batches_are_sent_again_unchanged_and_first():
    box = outbox()
    for value in range(3):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    sent = [take_one(box) for _ in range(2)]
    box.on_lost(sent, "the connection closed", 0)
    assert box.takes(1, LEADERS, 0) == [], "a back-off comes before the next attempt"
    again = [take_one(box, 100) for _ in range(3)]
    assert [values_of(batch.records) for batch in again] == [[0], [1], [2]]
    assert [identity(batch) for batch in again] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)]


def test_nothing_is_sent_while_batches_behind_a_failed_one_are_in_flight():
    """They would be appended before it if the leader returned in between."""
    box = outbox()
    for value in range(3):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    first, second = take_one(box), take_one(box)
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    assert box.takes(1, LEADERS, 1000) == []
    box.on_answer(second, ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    again = [take_one(box, 1000) for _ in range(3)]
    assert [identity(batch) for batch in again] == [(7, 0, 0), (7, 0, 1), (7, 0, 2)], (
        "the epoch stays: the refusal was expected"
    )


def test_a_duplicate_is_a_success():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    assert box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER), 0)
    assert box.is_empty
    assert box.unacknowledged_bytes == 0


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_a_broker_that_forgot_the_producer_receives_a_new_epoch(code):
    """Only this partition restarts its sequences, from the refused batch on (KIP-360)."""
    box = outbox()
    for value in range(3):
        box.add(PLACE, batch_of(value), 1, 0)
    box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.NONE), 0)
    second, third = take_one(box), take_one(box)
    box.on_answer(second, ProduceAnswer(code=int(code), log_start_offset=0), 0)
    box.on_answer(third, ProduceAnswer(code=int(code), log_start_offset=0), 0)
    again = [take_one(box, 1000)]
    assert box.takes(1, LEADERS, 1000) == [], "the first of an epoch goes alone"
    box.on_answer(again[0], ProduceAnswer(code=ErrorCode.NONE), 1000)
    again.append(take_one(box, 1000))
    assert [identity(batch) for batch in again] == [(7, 1, 0), (7, 1, 1)]
    box.add(OTHER, batch_of(1), 1, 0)
    assert identity(take_one(box, 1000)) == (7, 0, 0)


def test_an_unknown_producer_without_a_log_start_is_only_tried_again():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.UNKNOWN_PRODUCER_ID), 0)
    assert identity(take_one(box, 1000)) == (7, 0, 0)


def test_epochs_that_are_exhausted_need_another_producer_id():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    box._partitions[PLACE].producer_epoch = PRODUCER_EPOCH_MAX
    box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    assert box.wants_producer_id
    assert box.takes(1, LEADERS, 1000) == []
    box.renew_producer_id(8)
    assert not box.wants_producer_id
    assert identity(take_one(box, 1000)) == (8, 0, 0)


def test_a_batch_that_is_too_large_is_split_and_keeps_its_sequences():
    box = outbox()
    box.add(PLACE, batch_of(1, 2, 3), 3, 0)
    box.add(PLACE, batch_of(4), 1, 0)
    known(box)
    whole, behind = take_one(box), take_one(box)
    assert not box.on_answer(whole, ProduceAnswer(code=ErrorCode.MESSAGE_TOO_LARGE), 0)
    box.on_answer(behind, ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 0)
    again = [take_one(box, 1000) for _ in range(3)]
    assert [values_of(batch.records) for batch in again] == [[1], [2, 3], [4]]
    assert [identity(batch)[2] for batch in again] == [0, 1, 3]
    for batch in again:
        box.on_answer(batch, ProduceAnswer(code=ErrorCode.NONE), 1000)
    assert box.is_empty
    assert (box.unacknowledged_bytes, box.acknowledged_records) == (0, 4)


def test_one_record_that_is_too_large_names_partition_size_and_key():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    with pytest.raises(
        ProduceError, match=r"orders-0 refused a record \(\d+ bytes\) with MESSAGE_TOO_LARGE.*max\.message\.bytes"
    ) as error:
        box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.MESSAGE_TOO_LARGE), 0)
    assert error.value.place == PLACE


def test_a_fatal_error_names_partition_and_code():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    answer = ProduceAnswer(code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, message="may not write")
    with pytest.raises(
        ProduceError, match="orders-0 refused a record .* with TOPIC_AUTHORIZATION_FAILED: may not write"
    ):
        box.on_answer(take_one(box), answer, 0)


def test_a_batch_without_acknowledgement_ends_with_its_last_error():
    box = outbox(delivery_timeout_ms=5000)
    box.add(PLACE, batch_of(1), 1, 0)
    box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.NOT_ENOUGH_REPLICAS), 0)
    box.check_deadlines(4999)
    assert box.wait_ms(200) == 4800
    with pytest.raises(
        ProduceError, match=r"delivery\.timeout\.ms=5000, after 1 attempts; the last error: NOT_ENOUGH_REPLICAS"
    ):
        box.check_deadlines(5000)


def test_memory_is_bounded_and_a_large_batch_is_sent_alone():
    box = outbox(memory_bytes=100)
    assert box.has_room(1000)
    box.add(PLACE, batch_of(1), 1, 0)
    assert not box.has_room(40)
    box.on_answer(take_one(box), ProduceAnswer(code=ErrorCode.NONE), 0)
    assert box.has_room(1000)


def test_a_request_begins_with_partitions_that_the_last_had_no_room_for():
    box = outbox(request_bytes=1)
    for place in (PLACE, OTHER, PLACE, OTHER):
        box.add(place, batch_of(1), 1, 0)
    known(box)
    assert [take_one(box).place for _ in range(4)] == [PLACE, OTHER, PLACE, OTHER]


def test_only_the_leader_is_sent_to():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    assert box.takes(2, LEADERS, 0) == []
    assert box.takes(1, {}, 0) == []


def test_failures_in_a_row_are_counted_until_one_batch_is_accepted():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    for now_ms, rest in ((0, 100), (1000, 200), (2000, 400)):
        box.on_answer(take_one(box, now_ms), ProduceAnswer(code=ErrorCode.NOT_ENOUGH_REPLICAS), now_ms)
        assert box.takes(1, LEADERS, now_ms + rest - 1) == []
    box.on_answer(take_one(box, 3000), ProduceAnswer(code=ErrorCode.NONE), 3000)
    box.add(PLACE, batch_of(2), 1, 3000)
    box.on_answer(take_one(box, 3000), ProduceAnswer(code=ErrorCode.NOT_ENOUGH_REPLICAS), 3000)
    assert take_one(box, 3100)


def test_an_unknown_code_ends_with_its_number():
    box = outbox()
    box.add(PLACE, batch_of(1), 1, 0)
    with pytest.raises(ProduceError, match=r"orders-0 refused a record .* with error 9999"):
        box.on_answer(take_one(box), ProduceAnswer(code=9999), 0)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_what_a_leader_appended_and_did_not_acknowledge_receives_nothing_twice(code):
    """It was stopped cleanly, remembers only the last batch, and refuses the one before it, which it has."""
    box = outbox()
    for value in range(2):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    for batch in [take_one(box), take_one(box)]:
        box.on_answer(batch, ProduceAnswer(code=code), 0)
    first, second = take_one(box, 1000), take_one(box, 1000)
    box.on_answer(first, ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 1000)
    box.on_answer(second, ProduceAnswer(code=ErrorCode.NONE), 1000)
    assert box.is_empty


def test_a_batch_that_was_accepted_before_an_earlier_one_proves_nothing_about_it():
    """A leader without state of the producer accepted it.

    That it has later batches does not prove that it has the first.
    """
    box = outbox()
    for value in range(3):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    first, second, third = (take_one(box) for _ in range(3))
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NOT_LEADER_OR_FOLLOWER), 0)
    box.on_answer(second, ProduceAnswer(code=ErrorCode.NONE), 0)
    box.on_lost([third], "closed", 0)
    box.on_lost([take_one(box, 1000), take_one(box, 1000)], "closed", 1000)
    first, third = take_one(box, 3000), take_one(box, 3000)
    box.on_answer(first, ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 3000)
    box.on_answer(third, ProduceAnswer(code=ErrorCode.NONE), 3000)
    again = take_one(box, 9000)
    assert (values_of(again.records), identity(again)) == ([0], (7, 1, 0))


def test_a_restarted_broker_that_remembers_only_one_batch_receives_nothing_twice():
    """It refuses the batches that it has, except the last: if it accepts the last again, it has the earlier ones."""
    box = outbox()
    for value in range(5):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    sent = [take_one(box) for _ in range(5)]
    box.on_lost(sent, "closed", 0)
    again = [take_one(box, 1000) for _ in range(5)]
    out_of_order, appended = (
        ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ProduceAnswer(code=ErrorCode.NONE),
    )
    for batch, answer in zip(again, [out_of_order, out_of_order, appended, appended, appended], strict=True):
        box.on_answer(batch, answer, 1000)
    assert box.is_empty
    assert (box.acknowledged_records, box.unacknowledged_bytes) == (5, 0)


def test_batches_in_doubt_are_sent_again_before_a_new_epoch():
    """The first request after a loss may have no room for all of it."""
    box = outbox()
    for value in range(4):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    box.on_lost([take_one(box) for _ in range(3)], "closed", 0)
    box.on_answer(take_one(box, 1000), ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 1000)
    second = take_one(box, 3000)
    assert identity(second) == (7, 0, 1)
    box.on_answer(second, ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 3000)
    box.on_answer(take_one(box, 6000), ProduceAnswer(code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), 6000)
    first = take_one(box, 9000)
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NONE), 9000)
    assert [identity(batch) for batch in (first, *(take_one(box, 9000) for _ in range(3)))] == [
        (7, 1, number) for number in range(4)
    ]


def test_an_accepted_later_batch_proves_nothing_about_a_refused_one():
    """A broker without state of the producer accepts any sequence: it does not have the batch that it refused."""
    box = outbox()
    for value in range(2):
        box.add(PLACE, batch_of(value), 1, 0)
    known(box)
    first, second = take_one(box), take_one(box)
    box.on_answer(first, ProduceAnswer(code=ErrorCode.NOT_ENOUGH_REPLICAS), 0)
    box.on_answer(second, ProduceAnswer(code=ErrorCode.NONE), 0)
    assert values_of(take_one(box, 1000).records) == [0]


class ModelBroker:
    """One partition as in a broker: the last five batches of the producer, and the appended records.

    As with Kafka, a producer that it doesn't know begins at any sequence.
    """

    def __init__(self) -> None:
        self.appended: list[int] = []
        self.epoch = -1
        self.next_sequence = 0
        self.recent: deque[tuple[int, int]] = deque(maxlen=5)

    def append(self, batch: ProducerBatch, limit: int) -> ErrorCode:
        values = values_of(batch.records)
        if len(values) > limit:
            return ErrorCode.MESSAGE_TOO_LARGE
        _, epoch, sequence = identity(batch)
        if epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if epoch == self.epoch and (sequence, len(values)) in self.recent:
            return ErrorCode.NONE
        if self.epoch >= 0 and sequence != (self.next_sequence if epoch == self.epoch else 0):
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if epoch > self.epoch:
            self.recent.clear()
        self.epoch, self.next_sequence = epoch, sequence + len(values)
        self.recent.append((sequence, len(values)))
        self.appended += values
        return ErrorCode.NONE


@each("seed", range(150))
def test_with_any_failures_everything_is_appended_once_and_in_order(seed):
    """Refusals or restarts of the broker, with lost requests and answers and with splits; connections keep the order.

    Not both: a first batch that is refused for another reason, while a later one is taken, is in doubt, and is then
    sent again.
    """
    draw = random.Random(seed)
    has_restarts = seed % 2 == 1
    box, broker = outbox(), ModelBroker()
    expected: list[int] = []
    now_ms = 0
    pending: deque[ProducerBatch] = deque()
    rounds = 0
    while len(expected) < 60 or not box.is_empty:
        rounds += 1
        troubled = rounds < 400
        if len(expected) < 60 and draw.random() < 0.5:
            values = list(range(len(expected), len(expected) + draw.randrange(1, 5)))
            expected += values
            box.add(PLACE, batch_of(*values), len(values), now_ms)
        pending.extend(box.takes(1, LEADERS, now_ms))
        if pending and draw.random() < 0.6:
            fate = draw.random() if troubled else 1.0
            if has_restarts and fate < 0.05:
                # A clean restart: brokers then keep only the last batch of a producer.
                broker.recent = deque(list(broker.recent)[-1:], maxlen=5)
            if fate < 0.1:
                # The connection ends: the broker executed a prefix of what it was sent, and no answer arrives.
                for batch in list(pending)[: draw.randrange(len(pending) + 1)]:
                    broker.append(batch, 3)
                box.on_lost(list(pending), "closed", now_ms)
                pending.clear()
            else:
                batch = pending.popleft()
                code = ErrorCode.NOT_ENOUGH_REPLICAS if fate < 0.25 and not has_restarts else broker.append(batch, 3)
                box.on_answer(batch, ProduceAnswer(code=code, log_start_offset=0), now_ms)
        now_ms += draw.randrange(0, 400)
        assert rounds < 3000
    assert broker.appended == expected
    assert broker.epoch == 0, "no event here needs another epoch"
