"""Repairs a damaged journal of log start offsets as far as possible, and reports the rest: `lowtide repair-log-start`.

A damaged journal has lost frames, which may have held acknowledged deletes. Nothing in the directory has them any more,
and only the operator can accept that. The repair promises:

- every value that can be read is kept: the exports of the last fold first, then each good frame, by its sequence;
- a partition of which nothing can be read begins at its first segment, as in Apache Kafka;
- the damaged files stay beside the new ones, under names that end in `.damaged-1`, `-2` and so on;
- the directory's registration counter is removed, so that the cluster takes its replicas for stale: others lead them,
  and they learn the log starts from these before they may be elected cleanly. A sole broker has no others: its lost
  deletes come back.

Killed at any point it can be run again. It doesn't touch segments.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from lowtide.protocol.types import Offset, TopicId, TopicPartition
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem
from lowtide.storage.checkpoint import LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT, CheckpointError
from lowtide.storage.errors import StorageError
from lowtide.storage.log_directory import LOCK_FILE, REGISTRATION_COUNTER, list_directory
from lowtide.storage.log_start.journal_format import apply_entries
from lowtide.storage.log_start.journal_image import JOURNAL_NAME, encode_journal
from lowtide.storage.log_start.journal_loading import journal_path, merge_larger, read_offsets
from lowtide.storage.log_start.journal_reading import JournalDamageError, decode_journal, salvage_frames


class RepairReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a repair found and did, or would do."""

    damage: Mapping[str, str]
    """What is wrong, by file name; if empty, nothing was done."""
    kept: Mapping[TopicPartition, Offset]
    """The log start offsets after the repair, of partitions that are here."""
    frames: int
    """How many frames of the damaged journal could be read."""
    lost_sequences: tuple[tuple[int, int], ...]
    """The ranges (inclusive) of frames missing between readable ones. Frames after the last readable one can't be
    counted.
    """
    set_aside: tuple[str, ...]
    """The names of the copies of damaged files."""


def repair(filesystem: FileSystem, directory: str, *, dry_run: bool = False) -> RepairReport:
    """Repairs the journal and the exports of a log directory that no broker uses.

    With `dry_run` it only reports. Errors: StorageError if a broker uses the directory; OSError from the file system.
    """
    if not filesystem.is_directory(directory):
        raise StorageError(directory, "there is no such log directory")
    try:
        lock = filesystem.lock(f"{directory}/{LOCK_FILE}")
    except AlreadyLockedError as error:
        raise StorageError(directory, "a broker uses this log directory; stop it before the repair") from error
    try:
        return _repair_locked(filesystem, directory, dry_run=dry_run)
    finally:
        lock.release()


def _repair_locked(filesystem: FileSystem, directory: str, *, dry_run: bool) -> RepairReport:
    damage: dict[str, str] = {}
    folders = list_directory(filesystem, directory).partitions
    names = {(topic_id, name.partition): name for name, topic_id in folders.items()}
    exports = _readable_exports(filesystem, directory, damage)
    journal_is_good = _journal_is_good(filesystem, directory, damage)
    entries: dict[tuple[TopicId, int], Offset] = {}
    frames = []
    if not journal_is_good:
        if filesystem.exists(journal_path(directory)):
            frames = salvage_frames(filesystem.read_bytes(journal_path(directory)))
        begin, kafka = exports.get(LOG_BEGIN_CHECKPOINT), exports.get(LOG_START_CHECKPOINT)
        merge_larger(entries, (begin or kafka or (0, {}))[1], folders)
        for _sequence, frame_entries in frames:
            apply_entries(entries, frame_entries)
        if begin and kafka and begin[0] != kafka[0]:
            merge_larger(entries, kafka[1], folders)  # Kafka has worked here since the last fold.
    set_aside: tuple[str, ...] = ()
    if damage and not dry_run:
        set_aside = _write_repaired(
            filesystem, directory, damage, None if journal_is_good else entries, frames[-1][0] if frames else 0
        )
    if journal_is_good:
        entries = decode_journal(filesystem.read_bytes(journal_path(directory))).entries
    return RepairReport(
        damage=damage,
        kept={names[key]: offset for key, offset in sorted(entries.items()) if key in names},
        frames=len(frames),
        lost_sequences=_gaps([sequence for sequence, _ in frames]),
        set_aside=set_aside,
    )


def _readable_exports(
    filesystem: FileSystem, directory: str, damage: dict[str, str]
) -> dict[str, tuple[int, dict[TopicPartition, Offset]]]:
    exports = {}
    for name in (LOG_BEGIN_CHECKPOINT, LOG_START_CHECKPOINT):
        if filesystem.exists(f"{directory}/{name}"):
            try:
                exports[name] = read_offsets(filesystem, directory, name)
            except CheckpointError as error:
                damage[name] = error.reason.partition(";")[0]
    return exports


def _journal_is_good(filesystem: FileSystem, directory: str, damage: dict[str, str]) -> bool:
    path = journal_path(directory)
    if not filesystem.exists(path):
        damage[JOURNAL_NAME] = "the file is missing"
        return False
    try:
        decode_journal(filesystem.read_bytes(path))
    except JournalDamageError as error:
        damage[JOURNAL_NAME] = str(error)
        return False
    return True


def _write_repaired(
    filesystem: FileSystem,
    directory: str,
    damage: Mapping[str, str],
    entries: Mapping[tuple[TopicId, int], Offset] | None,
    last_sequence: int,
) -> tuple[str, ...]:
    """Copies damaged files aside, then replaces or removes them. `entries` is None if the journal is good."""
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(f"{directory}/{REGISTRATION_COUNTER}")
    filesystem.sync_directory(directory)
    set_aside = []
    for name in sorted(damage):
        if filesystem.exists(f"{directory}/{name}"):
            set_aside.append(_free_name(filesystem, directory, name))
            filesystem.replace_file(f"{directory}/{set_aside[-1]}", filesystem.read_bytes(f"{directory}/{name}"))
    if entries is not None:
        snapshot = [(topic_id, partition, offset) for (topic_id, partition), offset in entries.items()]
        exported_crc = None
        if LOG_START_CHECKPOINT not in damage and filesystem.exists(f"{directory}/{LOG_START_CHECKPOINT}"):
            exported_crc = read_offsets(filesystem, directory, LOG_START_CHECKPOINT)[0]
        image, _content = encode_journal(snapshot, first_sequence=last_sequence + 1, exported_crc=exported_crc)
        filesystem.replace_file(journal_path(directory), image)
    for name in damage:
        if name != JOURNAL_NAME:
            filesystem.unlink(f"{directory}/{name}")
    filesystem.sync_directory(directory)
    return tuple(set_aside)


def _free_name(filesystem: FileSystem, directory: str, name: str) -> str:
    number = 1
    while filesystem.exists(f"{directory}/{name}.damaged-{number}"):
        number += 1
    return f"{name}.damaged-{number}"


def _gaps(sequences: list[int]) -> tuple[tuple[int, int], ...]:
    return tuple((before + 1, after - 1) for before, after in pairwise(sequences) if after > before + 1)
