"""The ledger is read from its topic with several fetches; later records replace earlier ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.receipts.ledger import LEDGER_TOPIC, Ledger, export_lines
from lowtide.admin.records import FetchedRecords
from lowtide.cli.ledger_reading import entries_of, read_export, read_ledger
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_ledger_records import LedgerEntry, encode_entry
from lowtide.protocol.errors import ErrorCode
from tests.unit.admin.ledger_rows import TIME_MS, clean, named


class LedgerClient:
    """Answers as a broker with one batch for each record, and one batch in each fetch."""

    def __init__(self, records: list[tuple[bytes, bytes | None]]) -> None:
        self.batches = [
            build_batch([(TIME_MS, key, value, ())], base_offset=place, leader_epoch=0, compression=Compression.LZ4)
            for place, (key, value) in enumerate(records)
        ]

    async def describe_topics(self, names):
        one = PartitionDescription(partition=0, leader=1, leader_epoch=0, replicas=(1,), isr=(1,))
        return {
            name: TopicDescription(name=name, topic_id=bytes(16), is_internal=True, partitions={0: one})
            for name in names
        }

    async def describe_cluster(self):
        return SimpleNamespace(cluster_id="cluster")

    async def list_offsets(self, wanted):
        return {
            key: ListedOffset(
                offset=0 if place is OffsetSpec.EARLIEST else len(self.batches), timestamp_ms=-1, leader_epoch=0
            )
            for key, place in wanted.items()
        }

    async def fetch_records(self, partition, offset):
        return FetchedRecords(
            records=self.batches[offset],
            log_start_offset=0,
            high_watermark=len(self.batches),
            last_stable_offset=len(self.batches),
            aborted=(),
        )


def read(client) -> Ledger:
    return asyncio.run(read_ledger(SimpleNamespace(client=client)))


def test_the_latest_record_of_each_key_counts():
    first, second = named(committed_ms=-1), named()
    tombstone = encode_entry(LedgerEntry(clean(2).key, None))
    records = [encode_entry(first), encode_entry(clean(2)), encode_entry(clean(1)), tombstone, encode_entry(second)]
    ledger = read(LedgerClient(records))
    assert list(ledger.entries()) == [second, clean(1)]


def test_an_export_has_what_was_read(tmp_path):
    ledger = read(LedgerClient([encode_entry(named()), encode_entry(clean(1))]))
    path = tmp_path / "export"
    path.write_bytes(b"".join(export_lines(ledger)))
    assert read_export(str(path)) == ledger


def test_records_of_later_versions_are_left_out():
    assert list(read(LedgerClient([(b"\x00\x63later", b"x"), encode_entry(clean(1))])).entries()) == [clean(1)]


def test_a_damaged_record_is_an_error():
    ledger = read(LedgerClient([(encode_entry(clean(1))[0], b"\x00\x00cut")]))
    with pytest.raises(CommandError, match="can't be read"):
        list(entries_of(ledger))


def test_a_cluster_without_a_ledger_gets_one_sentence():
    class Without(LedgerClient):
        async def describe_topics(self, names):
            return {name: BrokerAnsweredError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name) for name in names}

    with pytest.raises(CommandError) as caught:
        read(Without([]))
    assert str(caught.value) == f"the ledger can't be read: the cluster has no topic {LEDGER_TOPIC}."
    assert caught.value.code == ExitCode.FAILED
