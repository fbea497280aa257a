"""A backup of the metadata: read back as it was; a file that isn't whole, or is of a later Lowtide, is refused."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowtide.metadata import keys
from lowtide.metadata.backup import Backup, BackupError, backup_of, counted, decode_backup, encode_backup
from lowtide.metadata.metadata_copy import Row
from lowtide.metadata.records import NEWEST_LEVEL, BrokerRecord, HistoryRecord, SuspensionRecord, encode

VALUES = {
    keys.CLUSTER_ID: b"C",
    keys.HISTORY: encode(HistoryRecord("H")),
    keys.topic("t"): b'{"topic_id":"","partitions":1}',
    keys.known_broker(1): encode(BrokerRecord("i", (), metadata_level=2)),
    keys.known_broker(2): encode(BrokerRecord("i", (), metadata_level=1)),
    b"scram/SCRAM-SHA-256/alice": b"\x00\xff\n{}",
    b"acls/1": b"{}",
}
MADE_MS = 1_700_000_000_000


def rows(**further: bytes) -> dict[bytes, Row]:
    values = VALUES | {key.encode(): value for key, value in further.items()}
    return {key: (key, value, 3, 7) for key, value in values.items()}


def made(**further: bytes) -> Backup:
    return backup_of(rows(**further), 9, made_ms=MADE_MS, version="1.2")


CONTENT = encode_backup(made())


def test_a_backup_is_read_back() -> None:
    found = decode_backup(CONTENT)
    assert (found.made_ms, found.version, found.metadata_level) == (MADE_MS, "1.2", 2)
    assert (found.copy.cluster_id, found.copy.history_id, found.copy.revision) == ("C", "H", 9)
    assert found.copy.rows == rows()
    counts = counted(found)
    assert (counts["topics"], counts["brokers"], counts["scram_credentials"], counts["acls"], counts["tokens"]) == (
        1,
        2,
        1,
        1,
        0,
    )


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(BackupError):
            decode_backup(CONTENT[:length])


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_file_with_a_changed_byte_is_refused(place: int, change: int) -> None:
    """In the first line, in the checksum, in the header, in a key, in a value, in a line's end."""
    damaged = bytearray(CONTENT)
    damaged[place] ^= change
    with pytest.raises(BackupError):
        decode_backup(bytes(damaged))


@given(st.binary(min_size=1, max_size=40))
def test_a_file_with_something_behind_it_is_refused(more: bytes) -> None:
    with pytest.raises(BackupError, match="damaged"):
        decode_backup(CONTENT + more)


@given(st.binary(max_size=200))
def test_any_other_file_is_refused(content: bytes) -> None:
    with pytest.raises(BackupError):
        decode_backup(content)


def with_checksum(body: bytes, form: int = 1) -> bytes:
    return b"lowtide-backup %d %s\n%s" % (form, hashlib.sha256(body).hexdigest().encode(), body)


def test_a_file_of_a_later_lowtide_is_refused_with_what_it_is() -> None:
    body = CONTENT.partition(b"\n")[2]
    with pytest.raises(BackupError, match="has format 2, this Lowtide reads 1"):
        decode_backup(with_checksum(body, 2))
    record = encode(BrokerRecord("i", (), metadata_level=NEWEST_LEVEL + 1))
    later = encode_backup(made(**{"known_brokers/3": record}))
    with pytest.raises(
        BackupError,
        match=f"has metadata level {NEWEST_LEVEL + 1}, of Lowtide 1.2; this Lowtide knows up to {NEWEST_LEVEL}",
    ):
        decode_backup(later)


@pytest.mark.parametrize("body", [b"", b"{}\n", b'{"made_ms":1,"version":"","metadata_level":0}\n', b"\n" + CONTENT])
def test_a_file_with_a_right_checksum_and_other_content_is_refused(body: bytes) -> None:
    with pytest.raises(BackupError, match="can't be read"):
        decode_backup(with_checksum(body))


def test_what_brokers_would_not_act_on_is_not_backed_up() -> None:
    with pytest.raises(BackupError, match="is suspended, it went back"):
        made(suspension=encode(SuspensionRecord("it went back", 1)))
    with pytest.raises(BackupError, match="is empty"):
        backup_of({}, 0, made_ms=MADE_MS, version="1.2")
