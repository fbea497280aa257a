"""Reads and rewrites the journal of log start offsets at a start: durable, without a torn tail, with Kafka's changes.

Guards: damage is never read as "no entry"; each error names the file and the repair command. The promises are in
`journal.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from lowtide.protocol.crc32c import crc32c
from lowtide.protocol.types import ZERO_TOPIC_ID, FilePosition, Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import FileSystem
from lowtide.storage.checkpoint import LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, CheckpointError, decode_offsets
from lowtide.storage.errors import StorageError, is_passing
from lowtide.storage.log_start.journal_image import JOURNAL_NAME, JournalContent, encode_journal
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal


def repair_hint(directory: str) -> str:
    """Returns the end of each message about damage, which names the repair command."""
    return f"nothing was changed; `lowtide repair-log-start --log-dir {directory}` shows what can be saved and saves it"


def journal_path(directory: str) -> str:
    """Returns the path of a directory's journal."""
    return f"{directory}/{JOURNAL_NAME}"


def load_journal(
    filesystem: FileSystem, directory: str, *, folders: Mapping[TopicPartition, TopicId], expected: bool
) -> JournalContent:
    """Reads a directory's journal and rewrites it: durable, folded, without a torn tail, with Kafka's changes.

    See `open`.
    """
    path = journal_path(directory)
    exports = {
        name: read_offsets(filesystem, directory, name)
        for name in (LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT)
        if filesystem.exists(f"{directory}/{name}")
    }
    content: JournalContent | None = None
    if filesystem.exists(path):
        try:
            content = decode_journal(filesystem.read_bytes(path))
        except JournalDamageError as damage:
            raise StorageError(
                path, f"the journal of log start offsets is damaged: {damage}; {repair_hint(directory)}"
            ) from damage
    elif expected or LOG_BEGIN_CHECKPOINT in exports:
        reason = f"the journal of log start offsets is missing though this directory had one; {repair_hint(directory)}"
        raise StorageError(path, reason)
    entries = dict(content.entries) if content else {}
    known_crc = content.header.exported_crc if content else None
    exported_crc, kafka_offsets = exports.get(LOG_START_CHECKPOINT, (known_crc, {}))
    # A folder without a topic id can't have an entry yet: Kafka's file then stays to be adopted by the next start.
    unknown = any(folders.get(topic_partition) == ZERO_TOPIC_ID for topic_partition in kafka_offsets)
    if exported_crc != known_crc:
        merge_larger(entries, kafka_offsets, folders)
    # Always rewritten. What a killed process wrote can be read but may not be durable, and after a failed sync the
    # system calls such pages clean: syncing the old file again would prove nothing, and a later frame would follow a
    # lost one.
    first_sequence = content.next_sequence if content else 1
    snapshot = [(topic_id, partition, offset) for (topic_id, partition), offset in entries.items()]
    image, rewritten = encode_journal(
        snapshot, first_sequence=first_sequence, exported_crc=known_crc if unknown else exported_crc
    )
    try:
        filesystem.replace_file(path, image)
    except OSError as error:
        if not is_passing(error) or content is None:
            raise
        # Deletes free a full disk, and need a broker that starts.
        _write_in_place(filesystem, directory, content.end)
        return replace(content, entries=entries, torn=False)
    return rewritten


def _write_in_place(filesystem: FileSystem, directory: str, end: FilePosition) -> None:
    """Overwrites the journal in place, without the torn frame behind `end`. Takes no room; durable on return.

    If a power cut leaves out sectors, the journal reads the same: these sectors have equal bytes, or belong to the torn
    frame.
    """
    path = journal_path(directory)
    file = filesystem.open(path, write=True)
    size = file.size()
    file.pwritev([file.pread(end, 0), bytes(size - end)], 0)
    file.sync()
    file.close()
    filesystem.sync_directory(directory)


def merge_larger(
    entries: dict[tuple[TopicId, int], Offset],
    offsets: Mapping[TopicPartition, Offset],
    folders: Mapping[TopicPartition, TopicId],
) -> None:
    """Raises `entries` to the offsets of a checkpoint, as far as the partitions are here; lower offsets are ignored."""
    for topic_partition, offset in offsets.items():
        topic_id = folders.get(topic_partition, ZERO_TOPIC_ID)
        if topic_id != ZERO_TOPIC_ID:
            key = (topic_id, topic_partition.partition)
            entries[key] = max(offset, entries.get(key, offset))


def read_offsets(filesystem: FileSystem, directory: str, name: str) -> tuple[int, dict[TopicPartition, Offset]]:
    """Returns the CRC-32C and the entries of one of the two exports.

    Errors: CheckpointError with the repair command, also for an empty file: lost log starts aren't "no deletes".
    """
    path = f"{directory}/{name}"
    content = filesystem.read_bytes(path)
    try:
        return crc32c(content), decode_offsets(content, path, empty_allowed=False)
    except CheckpointError as error:
        raise CheckpointError(path, f"{error.reason}; {repair_hint(directory)}") from error
