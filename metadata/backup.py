"""A backup of the metadata: one file with their state at one revision, for the case that the store is lost.

Like the copies in log directories (`metadata_copy`), whose lines it has, it omits what lives with a lease. It contains
salted hashes of passwords, what verifies delegation tokens, and key store passwords that were set as configurations.

Format, a text file:

| line | content |
|---|---|
| first | `lowtide-backup`, the format (1), and the SHA-256 of everything after it, in hexadecimal digits |
| second | a JSON object: `made_ms` (since 1970), `version` (of Lowtide), `metadata_level` (the highest of all) |
| then | a `metadata_copy` without changes: cluster id, history, revision, keys |

Guards: a file that isn't complete, byte for byte, is rejected. So is a file of a later format or of an unknown metadata
level: a restore rewrites partitions, and would drop fields that it doesn't know.

`restore` decides what to write, `recovery_writer` writes it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import history_of
from lowtide.metadata.metadata_copy import CopyError, MetadataCopy, decode_copy, encode_copy
from lowtide.metadata.records import NEWEST_LEVEL, BrokerRecord, MetadataCorruptError, SuspensionRecord, decode
from lowtide.runtime.json_text import decode_json

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
"""What describes a backup: a name, and the prefix of its keys."""


class BackupError(ValueError):
    """There is nothing to back up, or the file is no complete backup; in a sentence."""


class Backup(msgspec.Struct, frozen=True):
    """The metadata at one revision. `metadata_level` is the highest of its brokers; `made_ms` is since 1970."""

    made_ms: int
    version: str
    metadata_level: int
    copy: MetadataCopy


class _Header(msgspec.Struct, frozen=True):
    made_ms: int
    version: str
    metadata_level: int


def backup_of(rows: Mapping[bytes, Row], revision: Revision, *, made_ms: int, version: str) -> Backup:
    """Returns a backup of a store with these keys. Errors: BackupError if no broker could use the store."""
    cluster_id = rows.get(keys.CLUSTER_ID)
    history_id = history_of(rows).history_id
    suspension = rows.get(keys.SUSPENSION)
    if suspension is not None:
        reason = decode(suspension[0], suspension[1], SuspensionRecord).reason
        raise BackupError(f"the metadata store is suspended, {reason}: its state isn't the brokers'")
    if cluster_id is None or not history_id:
        raise BackupError("the metadata store is empty: no broker has used it")
    levels = [_level(row) for row in rows.values() if row[0].startswith(keys.KNOWN_BROKERS)]
    copy = MetadataCopy(rows.values(), revision, history_id=history_id, cluster_id=cluster_id[1].decode())
    return Backup(made_ms, version, max(levels, default=0), copy)


def _level(row: Row) -> int:
    """Returns the metadata level of a broker; 0 if its record can't be read."""
    try:
        return decode(row[0], row[1], BrokerRecord).metadata_level
    except MetadataCorruptError:
        return 0


def encode_backup(backup: Backup) -> bytes:
    """Returns the file's content."""
    head = msgspec.json.encode(_Header(backup.made_ms, backup.version, backup.metadata_level))
    body = b"%s\n%s" % (head, b"".join(encode_copy(backup.copy)))
    return b"%s %d %s\n%s" % (MAGIC, FORMAT, hashlib.sha256(body).hexdigest().encode(), body)


def decode_backup(content: bytes) -> Backup:
    """Parses a file's content. Errors: BackupError, without the file's name."""
    first, _, body = content.partition(b"\n")
    words = first.split(b" ")
    if words[0] != MAGIC or len(words) < 2 or not words[1].isdigit():  # noqa: PLR2004  the format is the second word
        raise BackupError("it was not written by `lowtide backup`, or its first line is damaged")
    if int(words[1]) != FORMAT:
        raise BackupError(f"it has format {int(words[1])}, this Lowtide reads {FORMAT}; or its first line is damaged")
    if words[2:] != [hashlib.sha256(body).hexdigest().encode()]:
        raise BackupError("it is cut off or damaged: its checksum isn't that of its content")
    line, _, rest = body.partition(b"\n")
    try:
        head = decode_json(line, _Header)
        copy = decode_copy(rest)
    except (ValueError, CopyError) as error:
        raise BackupError(f"it can't be read: {error}") from error
    if head.metadata_level > NEWEST_LEVEL:
        level = f"metadata level {head.metadata_level}, of Lowtide {head.version}"
        raise BackupError(f"it has {level}; this Lowtide knows up to {NEWEST_LEVEL}")
    return Backup(head.made_ms, head.version, head.metadata_level, copy)


def counted(backup: Backup) -> dict[str, int]:
    """Returns the number of keys of each of `KINDS`."""
    found = Counter(dict.fromkeys(KINDS, 0))
    for key in backup.copy.rows:
        for name, prefix in KINDS.items():
            found[name] += key.startswith(prefix)
    return dict(found)
