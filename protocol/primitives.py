"""Functions for parts of Kafka's wire format: unsigned varints, lengths of strings, sections of unknown tagged fields.

Generated code (`compiler`) calls them, mostly for long varints and refusals. `constructs` defines the same types.

Both follow these rules:

- An unsigned varint has at most five bytes of seven bits, lowest first. Longer forms than necessary are accepted, as by
  Kafka.
- A string or array starts with an int16 or int32 count in the older ("fixed") encoding, and with count + 1 as an
  unsigned varint in the compact one. Null is -1 or, if compact, 0; it is invalid unless the field is nullable. Counts
  below -1 are invalid (Kafka reads null).
- A string has at most 32,767 bytes of valid UTF-8. Invalid UTF-8 is an error (Kafka replaces it).
- A section of tagged fields is a count, then tag, size and content of each. Unknown tags are skipped. If a tag is
  listed twice, the last entry wins; the order is not checked. Kafka's generated readers do the same. The content of a
  known tag must have exactly its size.

Sources: protocol guide, KIP-482.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any, NoReturn, Protocol, TypeAlias

from lowtide.protocol.errors import ProtocolError, SurplusBytesError, TooManyRowsError

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes to decode. A memoryview of a part of an object is copied first."""

STRING_BYTES_MAX = 32_767
"""The maximum size of a string in UTF-8: the range of an int16. Kafka applies it to compact strings too."""

SECTION_TAGS_MAX = 1_000
"""The maximum number of tagged fields per struct, including unknown ones. Kafka's messages have at most a dozen. A
section of this size takes a third of a millisecond."""

ROWS_UNLIMITED = (1 << 63) - 1
"""More rows than a message can have."""

VARINT_SHIFT_MAX = 28
"""The shift of a varint's fifth and last byte."""

VARINT_CONTINUES = 128
"""A byte of at least this value is not the last of its varint."""

_TABLE_SIZE = 4096


class SizedRecords(Protocol):
    """Records with a size in bytes, such as a slice of a file that is sent without reading it."""

    def __len__(self) -> int: ...


RecordsLike: TypeAlias = bytes | bytearray | memoryview | SizedRecords
"""Decoded records are a memoryview into the frame; records to encode may be anything with a size."""


def spanned(view: memoryview) -> bytes | bytearray | mmap:
    """Returns the object of `view`, from which text can be decoded; a copy if the view shows only a part of it."""
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
"""The encoded numbers below 4,096: an index is faster than a call."""


def unsigned_varint(number: int) -> bytes:
    """Encodes a non-negative number as an unsigned varint."""
    return VARINTS[number] if number < _TABLE_SIZE else _unsigned_varint(number)


def string_prefix(count_plus_one: int) -> bytes:
    """Returns the length prefix of a compact string of `count_plus_one - 1` bytes. Errors: ValueError."""
    if count_plus_one > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {count_plus_one - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}")
    return unsigned_varint(count_plus_one)


def continue_varint(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """Returns an unsigned varint whose first byte is `number` >= 128, and its end; `position` is after the first byte.

    Errors: IndexError if it is truncated; ProtocolError for more than five bytes.
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
            raise ProtocolError("an unsigned varint of more than five bytes")


def continue_string_length(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """Like `continue_varint`, for the length of a compact string. Errors: also ProtocolError above the limit."""
    number, position = continue_varint(buffer, position, number)
    if number > STRING_BYTES_MAX + 1:
        raise ProtocolError(f"a string of {number - 1} bytes; the protocol carries at most {STRING_BYTES_MAX}")
    return number, position


def continue_tag_count(buffer: Buffer, position: int, number: int) -> tuple[int, int]:
    """Like `continue_varint`, for a number of tagged fields. Errors: also ProtocolError above the limit."""
    number, position = continue_varint(buffer, position, number)
    if number > SECTION_TAGS_MAX:
        raise ProtocolError(f"{number} tagged fields in one section; at most {SECTION_TAGS_MAX} are read")
    return number, position


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Returns the unsigned varint at `position`, and its end. Errors: those of `continue_varint`."""
    number = buffer[position]
    if number < VARINT_CONTINUES:
        return number, position + 1
    return continue_varint(buffer, position + 1, number)


def skip_tags(buffer: Buffer, position: int, number: int, end: int) -> int:
    """Skips a section of unknown tagged fields, of which `number` is the first byte of the count. Returns its end.

    Errors: IndexError if it is truncated; ProtocolError if a tag exceeds `end`, or above `SECTION_TAGS_MAX` tags.
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
    """Raises the error for an invalid null or a negative count."""
    raise ProtocolError(f"{what} is null" if count == -1 else f"{what} has the count {count}")


def refuse_size(what: str, count: int, remaining: int) -> NoReturn:
    """Raises the error for a count that the `remaining` bytes cannot contain."""
    raise ProtocolError(f"{what} has the count {count}, but only {max(remaining, 0)} bytes remain")


def refuse_end(what: str, position: int, end: int, value: Any) -> NoReturn:
    """Raises the error for a message that ends at `position` instead of `end`: SurplusBytesError if that is earlier."""
    message = f"{what}: its fields end at {position}, the frame at {end}"
    raise SurplusBytesError(message, value, position) if position < end else ProtocolError(message)


def refuse_rows(what: str, rows_max: int) -> NoReturn:
    """Raises the error for a message with more than `rows_max` rows; the array or section `what` exceeds them."""
    # The error gets no name: with its traceback it would form a cycle that keeps the request's frame alive.
    raise TooManyRowsError(f"more than {rows_max} rows, at {what}")
