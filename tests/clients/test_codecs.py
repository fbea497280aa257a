"""Batches are stored with the producer's codec, unless the topic has another one; every client reads them.

`test_produce_and_consume.py` checks the contents, but a client without compression would pass there.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.protocol.compression import Compression
from lowtide.protocol.records import compression_of, iterate_batches

from .driver import Driver, OutgoingRecord, until

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = [OutgoingRecord(b"key", b"value-%d " % n * 50) for n in range(10)]


def codecs_in_the_log(lowtide: SimpleNamespace, topic: str) -> list[str]:
    """Returns the codec of each batch of partition 0, from the file."""
    [path] = (Path(lowtide.data_directory) / f"{topic}-0").glob("*.log")
    return [
        Compression(compression_of(header.attributes)).name.lower() for _, header in iterate_batches(path.read_bytes())
    ]


def check_contents(reading: Driver, topic: str) -> None:
    with reading.reader(topic, 0, 0) as reader:
        assert [(record.key, record.value) for record in reader.read(len(RECORDS))] == [
            (record.key, record.value) for record in RECORDS
        ]


@pytest.mark.parametrize("codec", CODECS)
def test_batches_are_stored_as_they_were_compressed(
    lowtide: SimpleNamespace, client: Driver, topic: str, codec: str
) -> None:
    """librdkafka compresses by lz4 only for a broker that lists FindCoordinator."""
    client.produce(topic, RECORDS, codec=codec)
    assert set(codecs_in_the_log(lowtide, topic)) == {codec}


@pytest.mark.parametrize("wanted", ["gzip", "zstd", "uncompressed"])
def test_a_topic_s_own_codec_is_what_is_stored(
    lowtide: SimpleNamespace, client: Driver, other: Driver, lowtide_topic: str, wanted: str
) -> None:
    """The broker recompresses batches with another codec."""
    other.create_topic(lowtide_topic, 1, {"compression.type": wanted})
    until(lambda: other.partition_count(lowtide_topic) == 1)
    client.produce(lowtide_topic, RECORDS, codec="snappy")
    assert set(codecs_in_the_log(lowtide, lowtide_topic)) == {"none" if wanted == "uncompressed" else wanted}
    check_contents(client, lowtide_topic)
    check_contents(other, lowtide_topic)
