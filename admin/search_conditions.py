"""What a search looks for: the conditions that a record has to meet.

    Conditions(text=b"EWR", header=(b"source", None))

All conditions must be met. A batch that does not contain their bytes is not decoded: finding bytes is fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from lowtide.admin.schemas.framing import NotPreparedError
from lowtide.admin.search_expression import Expression, TooMuchWorkError

if TYPE_CHECKING:
    from lowtide.admin.value_decoding import ValueDecoder
    from lowtide.protocol.records import Record

VALUE_BYTES_MAX: Final = 256 << 10
"""The largest value that an expression is applied to: decoding it takes a millisecond."""

TEXT_BYTES_MAX: Final = 4_096
"""The longest text, key, or header that is searched for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions. Those that are None are met by every record. Its `repr` has no content."""

    text: bytes | None = None
    """Bytes that the key or the value contains."""
    key: bytes | None = None
    """The whole key."""
    header: tuple[bytes, bytes | None] | None = None
    """The name of a header, and its value; None for any value."""
    where: Expression | None = None
    """An expression that is true for the value."""

    def __post_init__(self) -> None:
        """Errors: ValueError for a text that is too long."""
        named = {"the text": self.text, "the key": self.key}
        if self.header is not None:
            named |= {"the header's name": self.header[0], "the header's value": self.header[1]}
        for name, content in named.items():
            if content is not None and len(content) > TEXT_BYTES_MAX:
                raise ValueError(f"{name} has {len(content)} bytes: at most {TEXT_BYTES_MAX} can be searched for")

    def __repr__(self) -> str:
        return "Conditions()"

    @property
    def needles(self) -> Sequence[bytes]:
        """The bytes that every record that meets the conditions contains, the longest first."""
        parts = [self.text, self.key, *(self.header or ())]
        return sorted(filter(None, parts), key=len, reverse=True)

    @property
    def has_any(self) -> bool:
        """Whether a record may fail to meet them."""
        return any(each is not None for each in (self.text, self.key, self.header, self.where))


def header_condition(text: str) -> tuple[bytes, bytes | None]:
    """Reads NAME=VALUE, or NAME for any value. Errors: ValueError."""
    name, equals, value = text.partition("=")
    if not name:
        raise ValueError(f"the header {text!r} must be NAME=VALUE, or NAME for any value")
    return name.encode(), value.encode() if equals else None


class Matcher:
    """Tests records, and counts values that an expression could not be applied to."""

    def __init__(self, conditions: Conditions, decoder: ValueDecoder) -> None:
        self._conditions = conditions
        self._decoder = decoder
        self.other_format_total = 0
        """Values that are not of the format."""
        self.other_format_reason = ""
        """The reason of the first of them."""
        self.too_large_total = 0
        """Values that are too large for the expression."""

    def matches(self, record: Record) -> bool:
        """Returns whether a record meets all conditions. Errors: NotPreparedError."""
        wanted = self._conditions
        if wanted.key is not None and record.key != wanted.key:
            return False
        if wanted.text is not None and not any(
            part is not None and wanted.text in part for part in (record.key, record.value)
        ):
            return False
        if wanted.header is not None and not _has_header(record, *wanted.header):
            return False
        return wanted.where is None or self._is_true(wanted.where, record.value)

    async def meets(self, record: Record) -> bool:
        """Like `matches`, but asks for the schema of the value, if it is not known yet."""
        for _ in range(2):
            try:
                return self.matches(record)
            except NotPreparedError:
                await self._decoder.prepare(record.value or b"")
        return False  # Its schema was forgotten already.

    def _is_true(self, where: Expression, value: bytes | None) -> bool:
        if value is None:
            return False
        if len(value) > VALUE_BYTES_MAX:
            self.too_large_total += 1
            return False
        try:
            decoded = self._decoder.decode(value)
        except ValueError as error:
            self.other_format_total += 1
            self.other_format_reason = self.other_format_reason or str(error)
            return False
        try:
            return where.is_true(decoded)
        except TooMuchWorkError:
            self.too_large_total += 1
            return False


def _has_header(record: Record, name: bytes, value: bytes | None) -> bool:
    return any(each == name and value in (None, content) for each, content in record.headers)
