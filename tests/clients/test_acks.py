"""Producers with acks=all, 1 and 0, with and without idempotence, checked in the log."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lowtide.protocol.records import BatchHeader, iterate_batches

from .driver import Driver, OutgoingRecord, until
from .open_clients import OPEN_PRODUCERS, kcat_value

RECORDS = [OutgoingRecord(b"k", kcat_value(n)) for n in range(20)]


def batches(lowtide: SimpleNamespace, topic: str) -> list[BatchHeader]:
    """Returns the headers of partition 0's batches, as in its file."""
    [path] = (Path(lowtide.data_directory) / f"{topic}-0").glob("*.log")
    return [header for _, header in iterate_batches(path.read_bytes())]


@pytest.mark.parametrize("acks", ["all", "1", "0"])
@pytest.mark.parametrize("name", OPEN_PRODUCERS)
def test_records_arrive_for_every_acks(
    lowtide: SimpleNamespace, other: Driver, topic: str, name: str, acks: str
) -> None:
    """acks=0 has no response, so only the log shows that they arrived."""
    with OPEN_PRODUCERS[name](lowtide.bootstrap, topic, idempotent=False, acks=acks) as producer:
        for start in (0, 10):
            for record in RECORDS[start : start + 10]:
                producer.send(record, 0)
            producer.flush()
    until(lambda: other.offsets(topic, [0]) == {0: (0, len(RECORDS))})
    with other.reader(topic, 0, 0) as reader:
        assert [record.value for record in reader.read(len(RECORDS))] == [record.value for record in RECORDS]
    assert {(header.producer_id, header.producer_epoch) for header in batches(lowtide, topic)} == {(-1, -1)}


@pytest.mark.parametrize("name", OPEN_PRODUCERS)
def test_an_idempotent_producer_numbers_its_records(lowtide: SimpleNamespace, topic: str, name: str) -> None:
    """One id, and the sequence of each batch continues where the previous one ended."""
    with OPEN_PRODUCERS[name](lowtide.bootstrap, topic, idempotent=True) as producer:
        for record in RECORDS:
            producer.send(record, 0)
            producer.flush()
    found = batches(lowtide, topic)
    assert len(found) > 1
    assert {(header.producer_id >= 0, header.producer_epoch) for header in found} == {(True, 0)}
    assert len({header.producer_id for header in found}) == 1
    assert [header.base_sequence for header in found] == [header.base_offset for header in found]
