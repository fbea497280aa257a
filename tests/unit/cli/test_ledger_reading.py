"""The ledger is read from its topic with several fetches; later records replace earlier ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.offsets import ListedOffset, OffsetSpec
from lowtide.admin.receipts.envelope import ReceiptError
from lowtide.admin.receipts.ledger import LEDGER_TOPIC, Ledger, LedgerReader, LedgerRow, NoLedgerError, export_lines
from lowtide.admin.records import FetchedRecords
from lowtide.cli.ledger_reading import entries_of, read_export, read_ledger
from lowtide.cli.outcome import CommandError, ExitCode
from lowtide.protocol.batch_building import assemble_batch, build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_ledger_records import LedgerEntry, encode_entry
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.records import RECORD_BATCH_OVERHEAD, read_batch_header
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


def test_an_export_that_was_changed_or_cut_is_refused(tmp_path):
    """Protects from a replay that leaves out what damaged lines named."""
    ledger = read(LedgerClient([encode_entry(named()), encode_entry(clean(1))]))
    path, content = tmp_path / "export", b"".join(export_lines(ledger))
    head_end = content.index(b"\n") + 1
    for position in range(head_end, len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CommandError):
            read_export(str(path))
        path.write_bytes(content[:position])
        with pytest.raises(CommandError):
            read_export(str(path))


def test_an_export_of_an_earlier_version_has_no_digest(tmp_path):
    ledger = read(LedgerClient([encode_entry(named())]))
    _, *lines = export_lines(ledger)
    path = tmp_path / "export"
    path.write_bytes(b"".join([b'{"cluster_id":"cluster"}\n', *lines]))
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


def batch(base_offset: int, *keys: bytes | None, **fields) -> bytes:
    return build_batch([(TIME_MS, key, b"v", ()) for key in keys], base_offset=base_offset, leader_epoch=0, **fields)


class FetchedLedger(LedgerClient):
    """Answers each fetch with given bytes, by offset; `earliest` and `latest` are the bounds of the topic."""

    def __init__(self, fetches: dict[int, bytes], *, earliest: int = 0, latest: int) -> None:
        self.fetches = fetches
        self.bounds = {OffsetSpec.EARLIEST: earliest, OffsetSpec.LATEST: latest}
        self.asked: list[int] = []

    async def list_offsets(self, wanted):
        return {
            key: ListedOffset(offset=self.bounds[place], timestamp_ms=-1, leader_epoch=0)
            for key, place in wanted.items()
        }

    async def fetch_records(self, partition, offset):
        self.asked.append(offset)
        return FetchedRecords(
            records=self.fetches[offset], log_start_offset=0, high_watermark=106, last_stable_offset=106, aborted=()
        )


def rows_of(client: LedgerClient, bytes_max: int | None = None) -> tuple[list[bytes], bool]:
    """Returns the keys of the records that are read, and whether the beginning was left out."""
    reader = LedgerReader(client, bytes_max)

    async def read_all() -> list[LedgerRow]:
        return [row async for row in reader.rows()]

    return [key for key, _ in asyncio.run(read_all())], reader.is_cut


def test_each_record_is_read_once_however_batches_are_fetched():
    client = FetchedLedger({0: batch(0, b"a") + batch(1, b"b", b"c"), 3: batch(3, b"d")}, latest=4)
    assert rows_of(client) == ([b"a", b"b", b"c", b"d"], False)
    assert client.asked == [0, 3]


def test_records_outside_of_the_bounds_are_left_out():
    """A batch may begin before the log start, and reach over what was committed when the reading began."""
    client = FetchedLedger({1: batch(0, b"a", b"b", b"c")}, earliest=1, latest=2)
    assert rows_of(client) == ([b"b"], False)


def test_markers_and_records_without_a_key_are_left_out():
    fetched = batch(0, b"marker", is_control=True) + batch(1, None, b"a")
    assert rows_of(FetchedLedger({0: fetched}, latest=3)) == ([b"a"], False)


@pytest.mark.parametrize("content", [b"", batch(1, b"b")[:-1]], ids=["empty", "cut"])
def test_a_fetch_without_a_whole_batch_is_an_error(content: bytes):
    """Protects a command from fetching the same place for ever, and from taking a part for the whole ledger."""
    with pytest.raises(ReceiptError, match="the ledger can't be read at offset 1 or later: no whole batch"):
        rows_of(FetchedLedger({0: batch(0, b"a"), 1: content}, latest=2))


@pytest.mark.parametrize("base_offset", [0, 2, 1 << 40, -5])
def test_batches_with_wrong_offsets_are_an_error(base_offset: int):
    """Protects from leaving out records: no CRC contains the first offset of a batch."""
    fetched = batch(0, b"a", b"b") + batch(base_offset, b"c", b"d") + batch(4, b"e")
    if base_offset == 2:
        assert rows_of(FetchedLedger({0: fetched}, latest=5)) == ([b"a", b"b", b"c", b"d", b"e"], False)
        return
    with pytest.raises(ReceiptError, match="the ledger can't be read at offset 0 or later: "):
        rows_of(FetchedLedger({0: fetched}, latest=5))


def test_a_last_batch_beyond_the_end_of_the_topic_is_an_error():
    client = FetchedLedger({0: batch(0, b"a"), 1: batch(1 << 40, b"b")}, latest=2)
    with pytest.raises(ReceiptError, match="the ledger can't be read at offset 1 or later: "):
        rows_of(client)


@pytest.mark.parametrize(("bytes_max", "expected"), [(1, b"f"), (2, b"ef"), (3, b"def"), (4, b"abcdef")])
def test_a_part_of_the_ledger_ends_with_its_newest_record(bytes_max: int, expected: bytes):
    """Sizes are in batches. What was fetched to learn how large they are is left out, unless nothing is left out."""
    content = batch(100, b"a")
    fetches = {100: content + batch(101, b"b")}
    fetches |= {100 + place: batch(100 + place, b"abcdef"[place : place + 1]) for place in range(2, 6)}
    found, is_cut = rows_of(FetchedLedger(fetches, earliest=100, latest=106), bytes_max * len(content))
    assert (b"".join(found), is_cut) == (expected, len(expected) < 6)
    assert rows_of(FetchedLedger(fetches, earliest=100, latest=106), 1) == ([b"f"], True)


def damaged(*, magic: int = 2, record_count: int = 1, crc: int = 0) -> bytes:
    """Returns a batch with a change; its CRC is right unless `crc` changes it."""
    content = bytearray(batch(0, b"a"))
    header = read_batch_header(content)
    header.record_count = record_count
    content = bytearray(assemble_batch(header, content[RECORD_BATCH_OVERHEAD:]))
    content[16] = magic
    content[17] ^= crc
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (damaged(crc=1), "the ledger can't be read at offset 0 or later: the batch at offset 0 has a wrong CRC"),
        (damaged(record_count=2), "the ledger can't be read at offset 0 or later: "),
        (damaged(magic=1), "the ledger can't be read at offset 0 or later: "),
    ],
    ids=["crc", "records", "magic"],
)
def test_damaged_batches_are_an_error(content: bytes, sentence: str):
    """Protects a receipt from leaving out records that can't be read."""
    with pytest.raises(ReceiptError, match=sentence):
        rows_of(FetchedLedger({0: content}, latest=1))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (ErrorCode.TOPIC_AUTHORIZATION_FAILED, BrokerAnsweredError),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NoLedgerError),
        (ErrorCode.LEADER_NOT_AVAILABLE, ReceiptError),
    ],
)
def test_only_a_missing_topic_means_that_nothing_was_erased(code: ErrorCode, kind: type[Exception]):
    class Refusing(LedgerClient):
        async def describe_topics(self, names):
            return {name: BrokerAnsweredError(code, name) for name in names}

    with pytest.raises(Exception, match=code.name if kind is not NoLedgerError else "has no topic") as caught:
        asyncio.run(LedgerReader(Refusing([])).cluster_id())
    assert type(caught.value) is kind


def test_a_ledger_belongs_to_a_cluster_with_a_name():
    class Nameless(LedgerClient):
        async def describe_cluster(self):
            return SimpleNamespace(cluster_id=None)

    with pytest.raises(ReceiptError, match="no broker returned the cluster's id"):
        asyncio.run(LedgerReader(Nameless([])).cluster_id())


def test_unknown_bounds_of_the_topic_are_an_error():
    class Boundless(LedgerClient):
        async def list_offsets(self, wanted):
            return {key: BrokerAnsweredError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "ledger") for key in wanted}

    with pytest.raises(ReceiptError, match="the ledger can't be read: ledger: NOT_LEADER_OR_FOLLOWER"):
        rows_of(Boundless([]))
