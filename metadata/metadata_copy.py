r"""A copy of the metadata that a broker has acted on, as its log directories remember it.

The copy proves that a store went back, and a recovery restores the store from it. It has all keys except those with a
lease, which describe who is alive now, and standing erasures, whose digests of keys must not outlive them. Each key has
its revisions: a store restored from a backup may have passed the copy's revision since, but then some key that the copy
changed still has its old state.

Format, a text file: lines of a CRC-32C (eight hexadecimal digits), a space and a JSON object.

| line | object |
|---|---|
| first | `format` (0), `history_id`, `cluster_id`, `revision`, `keys`: the number of keys that follow |
| then | `puts`: some of these keys, each as [key, value, create revision, modify revision] |
| then, appended | a change: `revision`, `puts`, `deletes` |

Keys are without the cluster's prefix; keys and values are text, with their bytes as ISO 8859-1. A truncated line, as
after a crash, and everything after it is ignored. A copy without all of its first keys is rejected.

    >>> encode_change(Change(7, ((b"topics/t", b"{}", 3, 7),), (b"adoption",)))
    b'132a1901 {"revision":7,"puts":[["topics/t","{}",3,7]],"deletes":["adoption"]}\n'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.records import TopicRecord, decode
from lowtide.metadata.store import NO_LEASE, Revision  # Read at run time, by msgspec.
from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import parse_topic_id
from lowtide.runtime.json_text import decode_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from lowtide.metadata.store import Batch, KeyValue
    from lowtide.protocol.types import TopicId

FORMAT: Final = 0
KEYS_PER_LINE: Final = 100

_TEXT: Final = "latin-1"
_CRC_DIGITS: Final = 8

Row = tuple[bytes, bytes, Revision, Revision]
"""A key, its value, its create revision and its modify revision."""

_TextRow = tuple[str, str, Revision, Revision]


class CopyError(ValueError):
    """The file is no copy of metadata, or incomplete."""


class Change(msgspec.Struct, frozen=True):
    """The changes of one revision."""

    revision: Revision
    puts: tuple[Row, ...] = ()
    deletes: tuple[bytes, ...] = ()


class _FileHeader(msgspec.Struct, frozen=True):
    format: int
    history_id: str
    cluster_id: str
    revision: Revision
    keys: int


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    revision: Revision = 0
    puts: tuple[_TextRow, ...] = ()
    deletes: tuple[str, ...] = ()


class MetadataCopy:
    """All keys without a lease, at `revision`."""

    __slots__ = ("cluster_id", "has_news", "history_id", "revision", "rows")

    def __init__(self, rows: Iterable[Row], revision: Revision, *, history_id: str = "", cluster_id: str = "") -> None:
        self.rows: dict[bytes, Row] = {row[0]: row for row in rows}
        self.revision = revision
        self.history_id = history_id
        self.cluster_id = cluster_id
        self.has_news = True
        """Whether more than witnesses has changed since this was set to False."""

    def apply(self, change: Change) -> None:
        for key in change.deletes:
            self.rows.pop(key, None)
        for row in change.puts:
            self.rows[row[0]] = row
            self.has_news = self.has_news or not row[0].startswith(keys.WITNESSES)
        self.has_news = self.has_news or bool(change.deletes)
        self.revision = change.revision


def is_copied(key: bytes, lease: int) -> bool:
    """Returns whether a copy has the key."""
    return lease == NO_LEASE and not key.startswith(keys.STANDING)


def rows_of(pairs: Iterable[KeyValue], prefix: bytes) -> list[Row]:
    """Returns the rows of a copy, without the prefix."""
    size = len(prefix)
    return [
        (pair.key[size:], pair.value, pair.create_revision, pair.modify_revision)
        for pair in pairs
        if is_copied(pair.key[size:], pair.lease)
    ]


def change_of(batch: Batch, prefix: bytes) -> Change:
    """Returns what a batch changes in a copy; perhaps only the revision."""
    size = len(prefix)
    puts = tuple(
        (event.key[size:], event.value, event.create_revision, event.modify_revision)
        for event in batch.events
        if event.value is not None and is_copied(event.key[size:], event.lease)
    )
    deletes = tuple(event.key[size:] for event in batch.events if event.value is None)
    return Change(batch.revision, puts, deletes)


def encode_copy(copy: MetadataCopy) -> Iterator[bytes]:
    """Yields the file's content in pieces."""
    rows = list(copy.rows.values())
    yield _line(msgspec.json.encode(_FileHeader(FORMAT, copy.history_id, copy.cluster_id, copy.revision, len(rows))))
    for start in range(0, len(rows), KEYS_PER_LINE):
        yield _line(msgspec.json.encode(_Line(puts=tuple(map(_text_row, rows[start : start + KEYS_PER_LINE])))))


def encode_change(change: Change) -> bytes:
    """Returns a line to append."""
    deletes = tuple(key.decode(_TEXT) for key in change.deletes)
    return _line(msgspec.json.encode(_Line(change.revision, tuple(map(_text_row, change.puts)), deletes)))


def decode_copy(content: bytes) -> MetadataCopy:
    """Returns the copy with the appended changes, as far as they are complete. Errors: CopyError."""
    lines = _whole_lines(content)
    try:
        head = decode_json(next(lines, b""), _FileHeader)
        if head.format != FORMAT:
            raise CopyError(f"the copy of the metadata has format {head.format}; this Lowtide reads format {FORMAT}")
        copy = MetadataCopy((), head.revision, history_id=head.history_id, cluster_id=head.cluster_id)
        for line in lines:
            change = decode_json(line, _Line)
            if change.revision == 0:
                copy.rows.update((row[0], row) for row in map(_row, change.puts))
                continue
            if len(copy.rows) != head.keys and copy.revision == head.revision:
                break
            copy.apply(
                Change(
                    change.revision, tuple(map(_row, change.puts)), tuple(key.encode(_TEXT) for key in change.deletes)
                )
            )
    except ValueError as error:
        raise CopyError(f"the copy of the metadata can't be read: {error}") from error
    if copy.revision == head.revision and len(copy.rows) != head.keys:
        raise CopyError(f"the copy of the metadata has {len(copy.rows)} keys instead of {head.keys}")
    return copy


def _line(content: bytes) -> bytes:
    return b"%08x %s\n" % (crc32c(content), content)


def _whole_lines(content: bytes) -> Iterator[bytes]:
    """Yields the objects of all lines before the first incomplete one."""
    for line in content.split(b"\n"):
        crc, text = line[:_CRC_DIGITS], line[_CRC_DIGITS + 1 :]
        if len(text) == 0 or crc != b"%08x" % crc32c(text):
            return
        yield text


def _text_row(row: Row) -> _TextRow:
    return row[0].decode(_TEXT), row[1].decode(_TEXT), row[2], row[3]


def _row(row: _TextRow) -> Row:
    return row[0].encode(_TEXT), row[1].encode(_TEXT), row[2], row[3]


def topic_id_in(copy: MetadataCopy, name: str) -> TopicId | None:
    """Returns the id of the topic with this name, or None if it is missing or unreadable."""
    row = copy.rows.get(keys.topic(name))
    try:
        return None if row is None else parse_topic_id(decode(row[0], row[1], TopicRecord).topic_id)
    except ValueError:
        return None


def contradiction(copy: MetadataCopy, rows: Mapping[bytes, Row], revision: Revision) -> str | None:
    """Returns how a store with these keys at `revision` proves that it isn't a later state of the copy, or None.

    A key never gets a smaller revision. What the store changed up to the copy's revision must be in the copy unchanged,
    and what the copy has must be in the store with the same revision, or one after the copy's. A missing key proves
    something only if it is never deleted, or if it is a topic's without a tombstone while tombstones aren't swept.
    """
    if revision < copy.revision:
        return f"it is at revision {revision}, and was at {copy.revision} before"
    for key, row in rows.items():
        known = copy.rows.get(key)
        if row[3] <= copy.revision and (known is None or known[3] != row[3]):
            was = "did not exist" if known is None else f"was of revision {known[3]}"
            return f"{key.decode(errors='replace')} is of revision {row[3]}, and {was} at revision {copy.revision}"
    if revision == copy.revision and len(rows) != len(copy.rows):
        return f"at revision {revision} it has {len(rows)} keys, and had {len(copy.rows)}"
    keeps_tombstones = sum(key.startswith(keys.DELETED_TOPICS) for key in rows) < keys.TOMBSTONES_MAX
    lasting = (*keys.LASTING, keys.DELETED_TOPICS) if keeps_tombstones else keys.LASTING
    for key in copy.rows:
        if key in rows:
            continue
        if key.startswith(lasting):
            return f"{key.decode(errors='replace')} is missing, which is never deleted"
        tombstone = keys.DELETED_TOPICS + key.removeprefix(keys.TOPIC_IDS)
        if key.startswith(keys.TOPIC_IDS) and keeps_tombstones and tombstone not in rows:
            return f"{key.decode(errors='replace')} is missing, and nothing says that the topic was deleted"
    return None
