"""Each byte of a journal, cut or changed, has a meaning: dropped if it cannot have been acknowledged, else damage."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowtide.protocol.crc32c import crc32c
from lowtide.storage.log_start.journal_format import FRAME_OVERHEAD, REMOVED, LogStartEntry, encode_frame, frame_bytes
from lowtide.storage.log_start.journal_image import (
    HEADER_BYTES,
    MINIMUM_CAPACITY,
    SECTOR_BYTES,
    JournalContent,
    encode_journal,
)
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal, salvage_frames
from tests.examples import examples

CAPACITY = 1 << 15
"""Small, for speed: the tests read the file many times, and it is mostly zeros."""
TOPIC = b"topic-of-16bytes"
OTHER = b"other-of-16bytes"


def journal(
    frames: list[list[LogStartEntry]], *, snapshot: list[LogStartEntry] | None = None
) -> tuple[bytearray, list[int]]:
    """A journal file, and where each of `frames` begins, followed by the end of the last one."""
    image, content = encode_journal(snapshot or [], first_sequence=5, exported_crc=None, minimum_capacity=CAPACITY)
    written = bytearray(image)
    positions = [content.end]
    for number, entries in enumerate(frames):
        frame = encode_frame(content.next_sequence + number, entries)
        written[positions[-1] : positions[-1] + len(frame)] = frame
        positions.append(positions[-1] + len(frame))
    return written, positions


def entries_of(count: int, *, offset: int = 1 << 40) -> list[LogStartEntry]:
    return [(TOPIC, partition, offset + partition) for partition in range(count)]


def test_a_new_journal_has_its_full_size_and_no_entries() -> None:
    image, content = encode_journal([], first_sequence=1, exported_crc=None)
    assert len(image) == MINIMUM_CAPACITY
    assert decode_journal(image) == content
    assert content == JournalContent(header=content.header, entries={}, end=HEADER_BYTES, next_sequence=1, torn=False)


def test_a_snapshot_of_many_frames_comes_back_and_leaves_three_quarters_free() -> None:
    snapshot = entries_of(20_000)
    image, content = encode_journal(snapshot, first_sequence=9, exported_crc=0)
    assert decode_journal(image) == content
    assert content.entries == {(topic_id, partition): offset for topic_id, partition, offset in snapshot}
    assert content.end * 4 <= len(image) == content.header.capacity
    assert content.header.exported_crc == 0, "a checksum of zero isn't the same as none"


def test_the_last_value_wins_even_if_it_is_smaller() -> None:
    """A truncation below the log start writes a lower one; with the largest value the log would have a gap."""
    image, _ = journal([[(TOPIC, 0, 900)], [(TOPIC, 0, 400)], [(TOPIC, 1, 5), (TOPIC, 1, 3)]])
    assert decode_journal(bytes(image)).entries == {(TOPIC, 0): 400, (TOPIC, 1): 3}


def test_a_removed_entry_is_gone_and_may_come_again() -> None:
    image, _ = journal([[(TOPIC, 0, 900), (OTHER, 0, 7)], [(TOPIC, 0, REMOVED), (OTHER, 0, REMOVED)], [(OTHER, 0, 2)]])
    assert decode_journal(bytes(image)).entries == {(OTHER, 0): 2}


@pytest.mark.parametrize("count", [1, 3, 40])
def test_a_frame_cut_at_any_byte_is_dropped_and_the_ones_before_it_stay(count: int) -> None:
    image, positions = journal([[(OTHER, 0, 7)], entries_of(count)])
    start, end = positions[1], positions[2]
    for cut in range(start, end):
        torn = bytes(image[:cut].ljust(len(image), b"\0"))
        content = decode_journal(torn)
        assert content.entries == {(OTHER, 0): 7}, cut
        assert (content.end, content.torn) == (start, cut > start), cut
    assert len(decode_journal(bytes(image)).entries) == count + 1


@given(
    fill=st.integers(min_value=0, max_value=40),
    count=st.integers(min_value=1, max_value=120),
    seed=st.integers(min_value=0, max_value=2**32),
)
@settings(max_examples=examples(300), deadline=None)
def test_a_frame_of_which_sectors_are_missing_is_dropped(fill: int, count: int, seed: int) -> None:
    """A disk writes sectors in any order: for any missing ones, the journal opens without that frame."""
    image, positions = journal([entries_of(1)] * fill + [entries_of(count)])
    start, end = positions[-2], positions[-1]
    pieces = [
        (max(start, sector), min(end, sector + SECTOR_BYTES))
        for sector in range(start - start % SECTOR_BYTES, end, SECTOR_BYTES)
    ]
    chance = random.Random(seed)
    missing = chance.sample(pieces, chance.randint(1, len(pieces)))
    for piece_start, piece_end in missing:
        image[piece_start:piece_end] = bytes(piece_end - piece_start)
    content = decode_journal(bytes(image))
    assert content.end == start
    assert content.entries == ({(TOPIC, 0): 1 << 40} if fill else {})
    assert content.torn == (len(missing) < len(pieces))


@pytest.mark.parametrize(("frames", "snapshot"), [([1, 1, 1], 0), ([2, 25, 3], 2), ([30], 0), ([1], 1), ([], 2)])
def test_a_changed_bit_in_anything_written_is_damage(frames: list[int], snapshot: int) -> None:
    """Also the last frame: it was written whole, so it may be acknowledged; dropping it would restore records."""
    image, positions = journal([entries_of(count) for count in frames], snapshot=entries_of(snapshot))
    written_end = positions[-1]
    for position in range(written_end):
        for bit in (1, 128) if position >= HEADER_BYTES else (1 << position % 8,):
            image[position] ^= bit
            with pytest.raises(JournalDamageError):
                decode_journal(bytes(image))
            image[position] ^= bit
    assert decode_journal(bytes(image)).end == written_end


def test_a_changed_bit_in_the_empty_part_costs_nothing_that_was_acknowledged() -> None:
    image, positions = journal([entries_of(2)])
    for position in range(positions[-1], len(image), 509):
        image[position] ^= 4
        try:
            content = decode_journal(bytes(image))
        except JournalDamageError:
            content = None
        image[position] ^= 4
        assert content is None or (content.torn and len(content.entries) == 2), position


@pytest.mark.parametrize("lost", [0, 1])
def test_a_hole_before_a_good_frame_is_damage(lost: int) -> None:
    """A frame is written only when the one before is durable, so a missing one before a good one was acknowledged."""
    image, positions = journal([entries_of(1), entries_of(2), entries_of(3)])
    image[positions[lost] : positions[lost + 1]] = bytes(positions[lost + 1] - positions[lost])
    with pytest.raises(JournalDamageError, match="a good one follows"):
        decode_journal(bytes(image))


def test_a_gap_in_the_sequence_is_damage() -> None:
    """A frame between two valid frames is cut out."""
    image, positions = journal([entries_of(1), entries_of(1), entries_of(1)])
    del image[positions[1] : positions[2]]
    image.extend(bytes(positions[2] - positions[1]))
    with pytest.raises(JournalDamageError, match="sequence 7 where 6 follows"):
        decode_journal(bytes(image))


@pytest.mark.parametrize("older", range(1, 7))
def test_a_lost_sector_that_takes_older_frames_along_is_damage(older: int) -> None:
    """The rest of the last frame does not fit the first missing byte: an acknowledged frame was in between."""
    image, _ = journal([entries_of(1)] * older + [entries_of(40)])
    image[512:1024] = bytes(512)
    with pytest.raises(JournalDamageError):
        decode_journal(bytes(image))


def test_a_snapshot_may_not_be_torn() -> None:
    """It was durable before the file got its name, so a missing piece is damage even at the end of the file."""
    image, content = encode_journal(entries_of(30), first_sequence=1, exported_crc=None)
    torn = image[: content.end - 1].ljust(len(image), b"\0")
    with pytest.raises(JournalDamageError, match="durable before the file got its name"):
        decode_journal(torn)


@pytest.mark.parametrize("size", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 60, CAPACITY - 1])
def test_a_file_cut_short_is_damage(size: int) -> None:
    """The file has its full size from its first moment, so no crash shortens it."""
    image, _ = journal([entries_of(1), entries_of(1)])
    with pytest.raises(JournalDamageError, match="bytes"):
        decode_journal(bytes(image[:size]))


def test_a_journal_of_another_format_or_version_is_refused() -> None:
    image, _ = journal([])
    with pytest.raises(JournalDamageError, match="LTLOGBEG"):
        decode_journal(bytes(len(image)))
    newer = bytearray(image)
    newer[8:12] = (2).to_bytes(4, "big")
    newer[36:40] = crc32c(bytes(newer[:36])).to_bytes(4, "big")
    with pytest.raises(JournalDamageError, match="version is 2"):
        decode_journal(bytes(newer))


@given(st.binary(min_size=1, max_size=3000), st.integers(min_value=0, max_value=600))
@settings(max_examples=examples(200), deadline=None)
def test_garbage_behind_the_last_frame_never_changes_what_was_acknowledged(garbage: bytes, distance: int) -> None:
    image, positions = journal([entries_of(3)])
    place = positions[-1] + distance
    image[place : place + len(garbage)] = garbage
    try:
        content = decode_journal(bytes(image))
    except JournalDamageError:
        return
    assert content.end == positions[-1]
    assert len(content.entries) == 3


def test_salvage_finds_every_good_frame_wherever_it_lies() -> None:
    image, positions = journal([entries_of(1), entries_of(2), entries_of(3)], snapshot=entries_of(4))
    image[positions[1] + 9] ^= 1
    image[0:8] = bytes(8)
    assert [(sequence, len(entries)) for sequence, entries in salvage_frames(bytes(image))] == [(5, 4), (6, 1), (8, 3)]


def test_the_size_of_a_frame_is_what_it_is_said_to_be() -> None:
    assert len(encode_frame(1, entries_of(1000))) == frame_bytes(1000) == FRAME_OVERHEAD + 28_000
