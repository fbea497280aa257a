"""Records of the topic's limit pass every client; one byte more is refused with MESSAGE_TOO_LARGE (10)."""

from __future__ import annotations

import random
from types import SimpleNamespace

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest

from lowtide.protocol.batch_building import build_batch

from .driver import Driver, OutgoingRecord, until
from .driver_kcat import Kcat, KcatError, run_kcat
from .open_clients import OPEN_PRODUCERS

DEFAULT_LIMIT = 1_048_588
"""The limit of a batch, with its header: `message.max.bytes`."""

TOO_LARGE = (
    confluent_kafka.KafkaException,
    kafka.errors.MessageSizeTooLargeError,
    aiokafka.errors.MessageSizeTooLargeError,
)
WRITERS = [name for name in OPEN_PRODUCERS if name != Kcat.name]


def letters(count: int) -> bytes:
    """Bytes that no codec compresses much, and that kcat reads as one line."""
    return random.Random(count).randbytes(count // 2 + 1).hex()[:count].encode()


def largest_value(limit: int, key: bytes) -> bytes:
    """Returns the value that makes a batch of one record exactly `limit` bytes."""
    overhead = len(build_batch([(0, key, letters(limit - 200), ())])) - (limit - 200)
    value = letters(limit - overhead)
    assert len(build_batch([(0, key, value, ())])) == limit
    return value


@pytest.mark.parametrize("name", WRITERS)
def test_a_batch_of_the_limit_is_accepted_and_a_larger_one_refused(
    lowtide: SimpleNamespace, other: Driver, topic: str, name: str
) -> None:
    value = largest_value(DEFAULT_LIMIT, b"k")
    with OPEN_PRODUCERS[name](lowtide.bootstrap, topic, idempotent=False) as producer:
        producer.send(OutgoingRecord(b"k", value), 0)
        assert producer.flush() == [0]
        producer.send(OutgoingRecord(b"k", value + b"x"), 0)
        with pytest.raises(TOO_LARGE, match=r"(?i)too.?large"):
            producer.flush()
        producer.send(OutgoingRecord(b"k", b"small"), 0)
        assert producer.flush() == [1]
    with other.reader(topic, 0, 0) as reader:
        assert [record.value for record in reader.read(2)] == [value, b"small"]


def test_kcat_reports_that_its_message_is_too_large(lowtide: SimpleNamespace, other: Driver, topic: str) -> None:
    line = "k|" + letters(DEFAULT_LIMIT).decode() + "\n"
    settings = ["-X", "message.max.bytes=8000000"]
    with pytest.raises(KcatError, match="(?i)too large"):
        run_kcat(lowtide.bootstrap, "-P", "-t", topic, "-p", "0", "-K", "|", *settings, text=line)
    assert other.offsets(topic, [0]) == {0: (0, 0)}


def test_a_topic_may_allow_more_and_every_client_reads_it(
    lowtide: SimpleNamespace, client: Driver, other: Driver, lowtide_topic: str
) -> None:
    """The first batch of a response is sent whole, though it is larger than the default limit of consumers (KIP-74)."""
    value = letters(5_000_000)
    other.create_topic(lowtide_topic, 1, {"max.message.bytes": "6000000"})
    until(lambda: other.partition_count(lowtide_topic) == 1)
    name = client.name if client.name in WRITERS else other.name
    with OPEN_PRODUCERS[name](lowtide.bootstrap, lowtide_topic, idempotent=True) as producer:
        for each in (b"before", value, b"after"):
            producer.send(OutgoingRecord(b"k", each), 0)
            producer.flush()
    for reading in (client, other):
        with reading.reader(lowtide_topic, 0, 0) as reader:
            assert [record.value for record in reader.read(3)] == [b"before", value, b"after"]


def test_a_topic_may_allow_less(library: Driver, other: Driver, lowtide_topic: str) -> None:
    other.create_topic(lowtide_topic, 1, {"max.message.bytes": "1000"})
    until(lambda: other.partition_count(lowtide_topic) == 1)
    library.produce(lowtide_topic, [OutgoingRecord(b"k", b"v" * 900)])
    with pytest.raises((*TOO_LARGE, AssertionError), match=r"(?i)too.?large"):
        library.produce(lowtide_topic, [OutgoingRecord(b"k", b"v" * 1000)])
    assert other.offsets(lowtide_topic, [0]) == {0: (0, 1)}
