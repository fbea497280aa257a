"""Lists the replicas in a log directory, with their offsets and latest leader epochs, without changing anything.

For an operator's tools while no broker uses the directory. A log ends where its last batch with a right checksum ends,
as the next start would find it. All errors are StorageErrors, because unreadable files might be decisive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from lowtide.protocol.records import (
    CURRENT_MAGIC,
    LOG_OVERHEAD,
    RECORD_BATCH_OVERHEAD,
    SMALLEST_BATCH_LENGTH,
    check_crc,
    read_batch_header,
)
from lowtide.protocol.types import (
    NO_LEADER_EPOCH,
    ZERO_TOPIC_ID,
    LeaderEpoch,
    Offset,
    TopicId,
    TopicPartition,
    topic_id_text,
)
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem
from lowtide.storage.checkpoint import (
    CLEAN_SHUTDOWN_MARKER,
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    META_PROPERTIES,
    RECOVERY_POINT_CHECKPOINT,
    CheckpointError,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
)
from lowtide.storage.errors import StorageError, storage_error
from lowtide.storage.log.segments.segment_names import LOG_SUFFIX, OFFSET_DIGITS, offset_name
from lowtide.storage.log_directory import LOCK_FILE, REGISTRATION_COUNTER, list_directory, may_lack_records
from lowtide.storage.log_start.journal_image import JOURNAL_NAME
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal


class SurveyedReplica(msgspec.Struct, frozen=True):
    """One log. The topic id is in text form.

    `log_end_offset` is exclusive; `leader_epoch` is the latest one known, -1 for none. `high_watermark` is the last one
    noted: everything below it was committed, even if the log has lost it since.
    """

    topic: str
    partition: int
    topic_id: str
    log_start_offset: Offset
    log_end_offset: Offset
    leader_epoch: LeaderEpoch
    high_watermark: Offset = 0


class SurveyedDirectory(msgspec.Struct, frozen=True):
    """A log directory. `registration` and `may_lack_records` are those of `LogDirectory`, as seen on this machine."""

    path: str
    cluster_id: str
    node_id: int
    registration: int | None
    replicas: tuple[SurveyedReplica, ...]
    may_lack_records: bool = False


class _KnownOffsets(NamedTuple):
    """The offsets in a directory's own files."""

    starts: Mapping[tuple[TopicId, int], Offset]
    recovery_points: Mapping[TopicPartition, Offset]
    high_watermarks: Mapping[TopicPartition, Offset]
    is_clean: bool


def survey(filesystem: FileSystem, path: str) -> SurveyedDirectory:
    """Surveys a log directory, which no broker may be using. Errors: StorageError."""
    try:
        if not filesystem.exists(f"{path}/{META_PROPERTIES}"):
            raise StorageError(path, f"this is no log directory of a broker: there is no {META_PROPERTIES}")
        lock = filesystem.lock(f"{path}/{LOCK_FILE}")
    except AlreadyLockedError as error:
        raise StorageError(path, "a broker uses the log directory; stop it first") from error
    except OSError as error:
        raise storage_error(path, error) from error
    try:
        return _survey(filesystem, path)
    except OSError as error:
        raise storage_error(error.filename or path, error) from error
    finally:
        lock.release()


def _survey(filesystem: FileSystem, path: str) -> SurveyedDirectory:
    place = f"{path}/{META_PROPERTIES}"
    properties = decode_meta_properties(filesystem.read_bytes(place), place)
    if properties is None:
        raise StorageError(place, "it is empty")
    counter = f"{path}/{REGISTRATION_COUNTER}"
    text = filesystem.read_bytes(counter).strip() if filesystem.exists(counter) else b""
    folders = list_directory(filesystem, path).partitions
    known = _KnownOffsets(
        starts=_log_starts(filesystem, path),
        recovery_points=_checkpoint(filesystem, f"{path}/{RECOVERY_POINT_CHECKPOINT}"),
        high_watermarks=_checkpoint(filesystem, f"{path}/{HIGH_WATERMARK_CHECKPOINT}"),
        is_clean=filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_MARKER}"),
    )
    replicas = [
        _replica(filesystem, f"{path}/{key}", key, topic_id, known)
        for key, topic_id in sorted(folders.items())
        if topic_id != ZERO_TOPIC_ID
    ]
    registration = int(text) if text.isdigit() else None
    return SurveyedDirectory(
        path,
        properties.cluster_id,
        properties.node_id,
        registration,
        tuple(replicas),
        may_lack_records(filesystem, path),
    )


def _checkpoint(filesystem: FileSystem, path: str) -> dict[TopicPartition, Offset]:
    """Returns nothing if the checkpoint can't be read: without recovery points everything is checked."""
    try:
        return decode_offsets(filesystem.read_bytes(path), path) if filesystem.exists(path) else {}
    except CheckpointError:
        return {}


def _log_starts(filesystem: FileSystem, path: str) -> dict[tuple[TopicId, int], Offset]:
    journal = f"{path}/{JOURNAL_NAME}"
    if not filesystem.exists(journal):
        return {}
    try:
        return decode_journal(filesystem.read_bytes(journal)).entries
    except JournalDamageError as error:
        raise StorageError(journal, f"{error}; `lowtide repair-log-start` repairs it") from error


def _replica(
    filesystem: FileSystem, folder: str, key: TopicPartition, topic_id: TopicId, known: _KnownOffsets
) -> SurveyedReplica:
    start = known.starts.get((topic_id, key.partition), 0)
    bases = sorted(int(name[:OFFSET_DIGITS]) for name in filesystem.listdir(folder) if _is_segment(name))
    end, epoch = _end_of_log(filesystem, folder, bases, None if known.is_clean else known.recovery_points.get(key, 0))
    start = max(start, min(bases, default=0))
    checkpoint = f"{folder}/{LEADER_EPOCH_CHECKPOINT}"
    if filesystem.exists(checkpoint):
        entries = decode_epochs(filesystem.read_bytes(checkpoint), checkpoint)
        # One that begins below the last batch, and is later than it, was overtaken: the batches are right.
        last = end if epoch >= 0 else 0
        epoch = max([epoch, *(each for each, first in entries if last <= first <= end)])
    high_watermark = known.high_watermarks.get(key, 0)
    return SurveyedReplica(
        key.topic, key.partition, topic_id_text(topic_id), start, max(start, end), epoch, high_watermark
    )


def _end_of_log(
    filesystem: FileSystem, folder: str, bases: Sequence[Offset], recovery_point: Offset | None
) -> tuple[Offset, LeaderEpoch]:
    """Returns where a log ends, and its latest leader epoch.

    Without a recovery point the log was stopped cleanly and ends with its last batch. Otherwise it ends at the first
    damage or gap above the recovery point, as in recovery.
    """
    first = len(bases) - 1
    while first > 0 and (recovery_point is None or bases[first] > recovery_point):
        if recovery_point is None and _end_of(filesystem, folder, bases[first])[1] != NO_LEADER_EPOCH:
            break
        first -= 1
    end, epoch = 0, NO_LEADER_EPOCH
    for number, base in enumerate(bases[max(first, 0) :]):
        if number and recovery_point is not None and base > max(end, recovery_point):
            break
        found, latest, is_whole = _end_of(filesystem, folder, base)
        end, epoch = max(end, found), max(epoch, latest)
        if not is_whole:
            break
    return end, epoch


def _is_segment(name: str) -> bool:
    return name.endswith(LOG_SUFFIX) and len(name) == OFFSET_DIGITS + len(LOG_SUFFIX) and name[:OFFSET_DIGITS].isdigit()


def _end_of(filesystem: FileSystem, folder: str, base: Offset) -> tuple[Offset, LeaderEpoch, bool]:
    """Returns the end of a segment's whole batches, their largest leader epoch, and whether nothing follows them."""
    file = filesystem.open(f"{folder}/{offset_name(base)}{LOG_SUFFIX}")
    position, size, end, epoch = 0, file.size(), base, NO_LEADER_EPOCH
    while size - position >= RECORD_BATCH_OVERHEAD:
        header = read_batch_header(file.pread(RECORD_BATCH_OVERHEAD, position))
        if header.magic != CURRENT_MAGIC or header.batch_length < SMALLEST_BATCH_LENGTH or header.base_offset < end:
            break
        if header.batch_length + LOG_OVERHEAD > size - position or not check_crc(
            file.pread(header.size_bytes, position), 0, header
        ):
            break
        end, epoch = header.last_offset + 1, max(epoch, header.partition_leader_epoch)
        position += header.size_bytes
    return end, epoch, position == size
