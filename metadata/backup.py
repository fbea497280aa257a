"""A backup of the metadata: one file that has them as they stood at one revision, for a store that is lost.

What lives with a lease isn't in it, as in the copies of log directories (`metadata_copy`), whose lines it has. It holds
what the store holds: salted hashes of passwords, what checks delegation tokens, keys of key stores that were set as
configurations.

Format, a text file:

| line | content |
|---|---|
| first | `lowtide-backup`, the format (1), and the SHA-256 of all that follows, in hexadecimal digits |
| second | a JSON object: `made_ms` (since 1970), `version` (of Lowtide), `metadata_level` (the highest of the brokers in it) |
| then | a `metadata_copy` without changes: cluster id, history, revision, keys |

Guards: a file that isn't whole, byte for byte, is none. A file of a later format, or of a metadata level that this
version doesn't know, is refused: a restore writes partitions again, and would drop what it doesn't know.

Does not do: deciding what a restore writes (`restore`), writing it (`recovery_writer`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.metadata_copy import CopyError, MetadataCopy, decode_copy, encode_copy
from lowtide.metadata.records import NEWEST_LEVEL, BrokerRecord, MetadataCorruptError, SuspensionRecord, decode
from lowtide.metadata.recovery import history_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.metadata_copy import Row
    from lowtide.metadata.store import Revision

MAGIC: Final = b"lowtide-backup"
FORMAT: Final = 1

KINDS: Final = {
    "topics": keys.TOPICS,
    "partitions": keys.PARTITIONS,
    "deleted_topics": keys.DELETED_TOPICS,
    "brokers": keys.KNOWN_BROKERS,
    "configurations": b"config/",
    "quotas": keys.CLIENT_QUOTAS,
    "acls": keys.ACLS,
    "scram_credentials": b"scram/",
    "tokens": keys.TOKENS,
}
"""What a backup is described by: a name, and what such keys begin with."""


class BackupError(ValueError):
    """There is nothing that a backup could be made of, or the file is no whole backup; in a sentence."""


class Backup(msgspec.Struct, frozen=True):
    """The metadata at one revision.

    `metadata_level` is the highest of the brokers that wrote them; `made_ms` is since 1970.
    """

    made_ms: int
    version: str
    metadata_level: int
    copy: MetadataCopy


class _Head(msgspec.Struct, frozen=True):
    made_ms: int
    version: str
    metadata_level: int


def backup_of(rows: Mapping[bytes, Row], revision: Revision, *, made_ms: int, version: str) -> Backup:
    """A backup of a store with these keys. Errors: BackupError for a store that no broker could use either."""
    cluster_id = rows.get(keys.CLUSTER_ID)
    history_id = history_of(rows).history_id
    suspension = rows.get(keys.SUSPENSION)
    if suspension is not None:
        reason = decode(suspension[0], suspension[1], SuspensionRecord).reason
        raise BackupError(f"the metadata store is suspended, {reason}: it isn't what the brokers agreed on")
    if cluster_id is None or not history_id:
        raise BackupError("the metadata store is empty: no broker has used it")
    levels = [_level(row) for row in rows.values() if row[0].startswith(keys.KNOWN_BROKERS)]
    copy = MetadataCopy(rows.values(), revision, history_id=history_id, cluster_id=cluster_id[1].decode())
    return Backup(made_ms, version, max(levels, default=0), copy)


def _level(row: Row) -> int:
    """The metadata level of a broker; 0 where its record can't be read."""
    try:
        return decode(row[0], row[1], BrokerRecord).metadata_level
    except MetadataCorruptError:
        return 0


def encode_backup(backup: Backup) -> bytes:
    """The file's content."""
    head = msgspec.json.encode(_Head(backup.made_ms, backup.version, backup.metadata_level))
    body = b"%s\n%s" % (head, b"".join(encode_copy(backup.copy)))
    return b"%s %d %s\n%s" % (MAGIC, FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def decode_backup(content: bytes) -> Backup:
    """The inverse. Errors: BackupError, without the file's name."""
    first, _, body = content.partition(b"\n")
    words = first.split(b" ")
    if words[0] != MAGIC or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004  the format is the second word
        raise BackupError("it is no backup of `lowtide backup`, or its first line is damaged")
    if int(words[1]) != FORMAT:
        raise BackupError(f"it has format {int(words[1])}, this Lowtide reads {FORMAT}; or its first line is damaged")
    if words[2:] != [hashlib.sha256(body).hexdigest().encode()]:
        raise BackupError("it is cut off or damaged: its checksum isn't that of its content")
    line, _, rest = body.partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=_Head)
        copy = decode_copy(rest)
    except (msgspec.DecodeError, CopyError) as error:
        raise BackupError(f"it can't be read: {error}") from error
    if head.metadata_level > NEWEST_LEVEL:
        level = f"metadata level {head.metadata_level}, of Lowtide {head.version}"
        raise BackupError(f"it has {level}; this Lowtide knows up to {NEWEST_LEVEL}")
    return Backup(head.made_ms, head.version, head.metadata_level, copy)


def counted(backup: Backup) -> dict[str, int]:
    """How many of each of `KINDS` are in it."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for key in backup.copy.rows:
        for name, prefix in KINDS.items():
            found[name] += key.startswith(prefix)
    return dict(found)
