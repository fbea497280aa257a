"""What follows the last good frame: where sectors cut its fields, at the end of the file, and impossible remains."""

from __future__ import annotations

import struct
from itertools import combinations

import pytest

from lowtide.protocol.crc32c import crc32c
from lowtide.storage.log_start.journal_format import FRAME_OVERHEAD, LogStartEntry, encode_frame, frame_bytes
from lowtide.storage.log_start.journal_image import HEADER_BYTES, SECTOR_BYTES, encode_journal
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal, salvage_frames

from .test_journal_format import CAPACITY, TOPIC, entries_of, journal


def frames_before(first_piece_bytes: int) -> list[list[LogStartEntry]]:
    """Frames behind which so many bytes are left of a sector."""
    for ones in range(128):
        for twos in range(128):
            end = HEADER_BYTES + ones * frame_bytes(1) + twos * frame_bytes(2)
            if SECTOR_BYTES - end % SECTOR_BYTES == first_piece_bytes and end < CAPACITY // 2:
                return [entries_of(1)] * ones + [entries_of(2)] * twos
    raise AssertionError(first_piece_bytes)


HEAD_CUTS = [4, 8, 12, 16, 20, 24]
"""A sector may end after each field of a frame's head, within its sequence, and after four bytes of its first entry."""


@pytest.mark.parametrize("first_piece_bytes", HEAD_CUTS)
def test_any_sectors_of_a_frame_whose_head_is_cut_may_be_missing(first_piece_bytes: int) -> None:
    written, positions = journal([*frames_before(first_piece_bytes), entries_of(40)])
    start, end = positions[-2], positions[-1]
    ends = [start + first_piece_bytes + number * SECTOR_BYTES for number in range(3)]
    pieces = list(zip([start, *ends], [*ends, end], strict=True))
    for count in range(1, len(pieces) + 1):
        for missing in combinations(pieces, count):
            image = bytearray(written)
            for piece_start, piece_end in missing:
                image[piece_start:piece_end] = bytes(piece_end - piece_start)
            content = decode_journal(bytes(image))
            assert (content.end, content.torn) == (start, count < len(pieces)), missing


@pytest.mark.parametrize("first_piece_bytes", HEAD_CUTS)
def test_a_changed_bit_of_a_frame_whose_head_is_cut_is_damage(first_piece_bytes: int) -> None:
    image, positions = journal([*frames_before(first_piece_bytes), entries_of(3)])
    for position in range(positions[-2], positions[-1]):
        image[position] ^= 1
        with pytest.raises(JournalDamageError):
            decode_journal(bytes(image))
        image[position] ^= 1


def filled_to(free_bytes: int) -> tuple[bytearray, int]:
    """A journal of which so many bytes are left, and where they begin."""
    end = CAPACITY - free_bytes
    for count in range(1, 8):
        entries, rest = divmod(end - HEADER_BYTES - count * FRAME_OVERHEAD, frame_bytes(1) - FRAME_OVERHEAD)
        if rest == 0:
            image, positions = journal([*[entries_of(1)] * (count - 1), entries_of(entries - count + 1)])
            assert positions[-1] == end
            return image, end
    raise AssertionError(free_bytes)


def test_a_journal_may_be_full_to_its_last_byte() -> None:
    image, end = filled_to(0)
    content = decode_journal(bytes(image))
    assert (content.end, content.torn) == (end, False)


@pytest.mark.parametrize("count", [1, 30])
def test_a_frame_that_would_fill_the_file_may_be_torn(count: int) -> None:
    image, end = filled_to(frame_bytes(count))
    frame = encode_frame(12, entries_of(count))
    for cut in (1, 4, 8, 20, 30, len(frame) - 1):
        image[end:] = frame[:cut].ljust(len(frame), b"\0")
        content = decode_journal(bytes(image))
        assert (content.end, content.torn) == (end, True), cut


@pytest.mark.parametrize("free_bytes", [4, 8, 12, 16, 20, 24, 48])
def test_what_no_frame_has_room_for_is_damage(free_bytes: int) -> None:
    """No frame was ever begun there. This holds for what begins like one, too."""
    image, end = filled_to(free_bytes)
    assert not decode_journal(bytes(image)).torn
    image[end:] = b"\x55" * free_bytes
    with pytest.raises(JournalDamageError, match="written whole"):
        decode_journal(bytes(image))
    image[end:] = encode_frame(12, entries_of(1))[:free_bytes]
    assert salvage_frames(bytes(image))
    if free_bytes > 8:
        with pytest.raises(JournalDamageError, match="written whole"):
            decode_journal(bytes(image))


@pytest.mark.parametrize("count", [0, (1 << 20) + 1, (1 << 32) - 1])
@pytest.mark.parametrize("checksum", [b"", b"\1\2\3\4"])
def test_a_count_that_no_frame_has_is_damage(count: int, checksum: bytes) -> None:
    """Mark and count are one piece here: a torn write has the written count, or nothing that follows the mark."""
    image, positions = journal([entries_of(1)])
    head = b"LSF1" + count.to_bytes(4, "big") + checksum
    image[positions[-1] : positions[-1] + len(head)] = head
    if count == 0 and not checksum:
        assert decode_journal(bytes(image)).torn, "the same as a write that was cut behind the mark"
        return
    with pytest.raises(JournalDamageError, match="written whole"):
        decode_journal(bytes(image))


def test_a_whole_frame_without_entries_is_no_frame() -> None:
    image, positions = journal([entries_of(1)])
    sealed = struct.pack(">IQ", 0, 6) + b"LSF."
    empty = b"LSF1" + struct.pack(">IIQ", 0, crc32c(sealed), 6) + b"LSF."
    image[positions[-1] : positions[-1] + len(empty)] = empty
    with pytest.raises(JournalDamageError, match="written whole"):
        decode_journal(bytes(image))
    assert [sequence for sequence, _ in salvage_frames(bytes(image))] == [5]


def test_a_frame_that_is_longer_than_its_count_says_is_damage_even_if_a_sector_is_missing() -> None:
    """Its count was changed after it was written, so it may have been acknowledged."""
    image, positions = journal([entries_of(1), entries_of(40)])
    start = positions[1]
    image[start + 4 : start + 8] = (35).to_bytes(4, "big")
    image[1024:1536] = bytes(SECTOR_BYTES)
    assert start < 1024
    assert start + frame_bytes(35) > 1536
    with pytest.raises(JournalDamageError, match="written whole"):
        decode_journal(bytes(image))


def test_a_cut_behind_bytes_that_look_like_an_end_mark_is_torn() -> None:
    """Where no frame could end."""
    image, positions = journal([[(b"topiLSF.16-bytes", 0, 5), (TOPIC, 1, 5)]])
    cut = positions[0] + 20 + 8
    assert bytes(image[cut - 4 : cut]) == b"LSF."
    content = decode_journal(bytes(image[:cut]).ljust(len(image), b"\0"))
    assert (content.end, content.torn) == (positions[0], True)


@pytest.mark.parametrize("good", [True, False])
def test_a_good_frame_is_found_behind_several_bad_ones(good: bool) -> None:
    image, positions = journal([entries_of(1), entries_of(2), entries_of(3), entries_of(4)])
    for start in positions[1:3] if good else positions[1:4]:
        image[start + 9] ^= 1
    message = (
        f"byte {positions[1]} can't be read, and a good one follows at byte {positions[3]}" if good else "written whole"
    )
    with pytest.raises(JournalDamageError, match=message):
        decode_journal(bytes(image))


def test_frames_are_salvaged_from_a_file_that_has_lost_its_header() -> None:
    image, _ = journal([entries_of(1), entries_of(2)])
    assert [(sequence, len(entries)) for sequence, entries in salvage_frames(bytes(image[HEADER_BYTES:]))] == [
        (5, 1),
        (6, 2),
    ]


def test_a_snapshot_that_takes_exactly_a_quarter_does_not_double_the_file() -> None:
    image, content = encode_journal(entries_of(54), first_sequence=1, exported_crc=None, minimum_capacity=1024)
    assert (content.end, len(image)) == (2048, 8192)
    assert decode_journal(image) == content
    larger, _ = encode_journal(entries_of(55), first_sequence=1, exported_crc=None, minimum_capacity=1024)
    assert len(larger) == 16384
