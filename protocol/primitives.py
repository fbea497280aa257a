"""The small shapes of Kafka's wire as functions: unsigned varints, prefixes of strings, tagged fields of which none is known.

Generated code (`compiler.py`) calls them, mostly off its hot path: long varints and refusals. `constructs.py` has the same shapes as the
slow reference.

Validity rules, the same in both forms:

- An unsigned varint has at most five bytes, seven bits each, lowest first; longer than necessary is accepted, as Kafka does.
- A string or array has an int16/int32 count in the older ("fixed") encoding, or count + 1 as an unsigned varint in the compact one.
  Null is -1, compact 0, and an error where the field isn't nullable. Below -1 is an error everywhere (Kafka takes it for null).
- A string has at most 32,767 bytes of valid UTF-8 (Kafka replaces what is invalid; here it's an error).
- A tagged field section is a count, then tag, size and content of each. Unknown tags are skipped and not kept. Of a tag that is given
  twice the last one counts, and the order isn't checked: Kafka's generated readers do the same. A known tag must use its size exactly.

Sources: protocol guide, KIP-482.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, NoReturn, Protocol, TypeAlias

from lowtide.protocol.errors import ProtocolError, SurplusBytesError, TooManyRowsError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""What is decoded. A memoryview should span the whole of its bytes, bytearray or mapping: what it shows of a part is copied first."""

STRING_BYTES_MAX = 32_767
"""Most UTF-8 bytes of a string: what an int16 can count; Kafka applies it to compact strings too."""

SECTION_TAGS_MAX = 1_000
"""Most tagged fields of one struct that are read, unknown ones with them: Kafka's messages have at most a dozen. It bounds how long a
section holds the reader: a third of a millisecond."""

ROWS_UNLIMITED = (1 << 63) - 1
"""More rows than a message can have."""

VARINT_SHIFT_MAX = 28
"""Bits below those of the fifth byte, which is the last that a varint may have."""

VARINT_CONTINUES = 128
"""A varint's byte of at least this value is followed by another."""

_TABLE_SIZE = 4096


class SizedRecords(Protocol):
    """Records that know their size in bytes, for example a slice of a file that is sent without being read into the message."""

    def __len__(self) -> int: ...


RecordsLike: TypeAlias = bytes | bytearray | memoryview | SizedRecords
"""A decoded message holds a memoryview into the frame; to be encoded it may be anything of known size."""


def spanned(view: memoryview) -> bytes | bytearray | mmap:
    """The object that `view` shows, for one can take text from that and cannot from a view; a copy when it shows only a part."""
    target = view.obj
    if isinstance(target, bytes | bytearray | mmap) and len(target) == view.nbytes and view.c_contiguous:
        return target
    return bytes(view)


def _unsigned_varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= VARINT_CONTINUES:
        encoded.append(number & 127 | VARINT_CONTINUES)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


VARINTS = tuple(_unsigned_varint(number) for number in range(_TABLE_SIZE))
"""The encoded form of every number below 4,096: one index instead of a call on the hot path."""


def unsigned_varint(number: int) -> bytes:
    """`number` (not negative) as an unsigned varint."""
    return VARINTS[number] if number < _TABLE_SIZE else _unsigned_varint(number)


def string_prefix(count_plus_one: int) -> bytes:
    """The length prefix of a compact string; `count_plus_one` is its size in bytes plus one.

    Errors: ValueError when the string is longer than the protocol can carry.
    """
    if count_plus_one > STRING_BYTES_MAX + 1:
        message = f"a string of {count_plus_one - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}"
        raise ValueError(message)
    return unsigned_varint(count_plus_one)


def continue_varint(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """Finish reading an unsigned varint whose first byte, `number` >= 128, is already read; `position` is the byte after it.

    Returns the number and the position after its last byte.
    Errors: IndexError when the buffer ends within it; ProtocolError when it has more than five bytes.
    """
    number &= 127
    shift = 7
    while True:
        byte = buffer[position]
        position += 1
        number |= (byte & 127) << shift
        if byte < VARINT_CONTINUES:
            return number, position
        shift += 7
        if shift > VARINT_SHIFT_MAX:
            message = "an unsigned varint of more than five bytes"
            raise ProtocolError(message)


def continue_string_length(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """As `continue_varint`, for the length prefix of a compact string, which has an upper bound.

    Errors: as `continue_varint`, and ProtocolError for a string of more than 32,767 bytes.
    """
    number, position = continue_varint(buffer, position, number)
    if number > STRING_BYTES_MAX + 1:
        message = f"a string of {number - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}"
        raise ProtocolError(message)
    return number, position


def continue_tag_count(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """As `continue_varint`, for the count of a section's tagged fields, which has an upper bound.

    Errors: as `continue_varint`, and ProtocolError for more than `SECTION_TAGS_MAX`.
    """
    number, position = continue_varint(buffer, position, number)
    if number > SECTION_TAGS_MAX:
        message = f"{number} tagged fields in one section; at most {SECTION_TAGS_MAX} are read"
        raise ProtocolError(message)
    return number, position


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned varint at `position`, and the position after it.

    Errors: IndexError when the buffer ends within it; ProtocolError when it has more than five bytes.
    """
    number = buffer[position]
    if number < VARINT_CONTINUES:
        return number, position + 1
    return continue_varint(buffer, position + 1, number)


def skip_tags(buffer: Buffer, position: int, number: int, end: int) -> int:
    """Pass over a tagged field section of which no tag is known; the first byte of its count, `number`, is already read.

    Returns the position after the section.
    Errors: IndexError when the buffer ends within it; ProtocolError when a tag reaches beyond `end` (exclusive), or for more than
    `SECTION_TAGS_MAX` tags.
    """
    if number >= VARINT_CONTINUES:
        number, position = continue_tag_count(buffer, position, number)
    while number:
        number -= 1
        _tag, position = read_varint(buffer, position)
        size, position = read_varint(buffer, position)
        if position + size > end:
            refuse_size("a tagged field", size, end - position)
        position += size
    return position


def refuse_count(what: str, count: int) -> NoReturn:
    """Raise the ProtocolError for a null that isn't allowed or a negative count."""
    message = f"{what} is null" if count == -1 else f"{what} has the count {count}"
    raise ProtocolError(message)


def refuse_size(what: str, count: int, remaining: int) -> NoReturn:
    """Raise the ProtocolError for a count that the `remaining` bytes cannot hold."""
    message = f"{what} has the count {count}, but only {max(remaining, 0)} bytes remain"
    raise ProtocolError(message)


def refuse_end(what: str, position: int, end: int, value: Any) -> NoReturn:
    """Raise the error for a message that ends at `position` instead of `end`: SurplusBytesError with its `value` if that is before it."""
    message = f"{what}: its fields end at {position}, the frame at {end}"
    raise SurplusBytesError(message, value, position) if position < end else ProtocolError(message)


def refuse_rows(what: str, rows_max: int) -> NoReturn:
    """Raise the TooManyRowsError for the array or section with which a message has more than `rows_max` rows."""
    # No name for it: with its traceback it would be a cycle, and keep the frame of its request until the collector
    # comes.
    message = f"more than {rows_max} rows, at {what}"
    raise TooManyRowsError(message)
