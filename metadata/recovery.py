"""Plans the recovery of metadata from what brokers remember, after the store was lost or restored to an earlier state.

Each broker provides the contents of its log directories (`BrokerFacts`). The newest copy of the metadata among them is
written to the store, with these differences:

* A partition has no leader. Its new ISR are those of its ISR members and eligible leaders (KIP-966) whose logs are the
  longest, by leader epoch and end; the first of them that starts is elected. So no replica leads that lacks
  acknowledged data, even if the copy is slightly old or a machine lost power.
* Eligible leaders stay eligible while a power cut can still shorten the longest logs.
* A stale replica stays stale if there is no better one: only an unclean election makes it leader.
* If no given log has what was committed, as far as that is known, the plan says what would be lost, and an operator
  must accept that.
* Leader epochs exceed those of any log, copy or the store by `EPOCH_JUMP`, so that older epochs are invalid.
* Registration numbers are those of the directories; producer ids are above all that may have been allocated.
* The store gets a new history, which names the one that it continues, and up to where: a directory that has seen more
  of that one is refused.

Pure: facts and the store's keys go in, a plan comes out. What could not be decided well is a problem of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_facts import BrokerFacts, RecoveryError, history_of, newest_copy
from lowtide.metadata.broker_image import encode_replicas
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.image_change import NOTHING_KNOWN, load_image
from lowtide.metadata.metadata_copy import MetadataCopy, contradiction
from lowtide.metadata.records import (
    NO_LEADER,
    HistoryRecord,
    MetadataCorruptError,
    NeededKeyError,
    PartitionRecord,
    RegistrationRecord,
    TopicRecord,
    decode,
    encode,
)
from lowtide.metadata.recovered_members import Choice, ReplicaLog, choose_members, still_stale, without_logs
from lowtide.metadata.store import KeyValue
from lowtide.protocol.types import BrokerId, LeaderEpoch, TopicId, topic_id_text  # Read at run time, by msgspec.

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from lowtide.metadata.image import PartitionImage, TopicImage
    from lowtide.metadata.metadata_copy import Row
    from lowtide.metadata.store import Revision

EPOCH_JUMP: Final = 100
"""How far leader epochs rise above the largest known one: there may have been elections since the store was
restored."""

PRODUCER_IDS_JUMP: Final = 1_000_000
"""Producer ids that are skipped: blocks may have been allocated that no copy knows of."""

LONG_AGO: Final = 1
"""The registration of recovered ISR members: older than all future ones."""

_OF_THE_OLD_STORE: Final = (keys.STALE, keys.UNCLEAN_STARTS, keys.HISTORY, keys.SUSPENSION)
"""Keys that describe registrations or the history of the old store."""


class RecoveredPartition(msgspec.Struct, frozen=True):
    """The recovery of one partition, for display. `loss` says what would be lost; empty for nothing."""

    topic: str
    partition: int
    in_sync_before: tuple[BrokerId, ...]
    in_sync: tuple[BrokerId, ...]
    leader_epoch: int
    log_start_offset: int | None
    log_end_offset: int | None
    eligible_before: tuple[BrokerId, ...] = ()
    eligible: tuple[BrokerId, ...] = ()
    loss: str = ""


class RecoveryPlan(msgspec.Struct, frozen=True):
    """The new contents of the store, keys without the prefix, and what an operator must know.

    `source` is the broker of the used copy; None for a backup.
    """

    values: Mapping[bytes, bytes]
    history: HistoryRecord
    source: BrokerId | None
    revision: Revision
    partitions: tuple[RecoveredPartition, ...]
    topics_back: tuple[str, ...]
    topics_gone: tuple[str, ...]
    problems: tuple[str, ...]

    @property
    def losses(self) -> tuple[str, ...]:
        """Acknowledged data that would be lost: an operator must accept that before the plan is written."""
        return tuple(each.loss for each in self.partitions if each.loss)


def is_needed(
    facts: Sequence[BrokerFacts], rows: Mapping[bytes, Row], revision: Revision, surplus: int | None
) -> str | None:
    """Returns why the store must be recovered; None if it matches the brokers. Errors: RecoveryError."""
    _, copy = newest_copy(facts)
    history = history_of(rows)
    if keys.SUSPENSION in rows:
        return "it is suspended"
    if history.previous_id == copy.history_id and copy.revision <= history.previous_revision:
        return None  # It was recovered, and no broker has run since.
    if history.history_id != copy.history_id:
        return "it has another history" if history.history_id else "it has none of this cluster"
    if surplus is not None and surplus < history.raft_surplus:
        return "it was restored from a snapshot"
    return contradiction(copy, rows, revision)


def plan_recovery(
    facts: Sequence[BrokerFacts],
    rows: Mapping[bytes, Row],
    *,
    without: Collection[BrokerId],
    history_id: str,
    raft_surplus: int,
    newest: tuple[BrokerId | None, MetadataCopy] | None = None,
) -> RecoveryPlan:
    """Plans the new contents of a store that has `rows` now. Errors: RecoveryError.

    `without`: brokers that are gone for good. `newest`: the copy to use, and its broker (None for a backup's), if it
    isn't the newest of the brokers'.
    """
    source, copy = newest_copy(facts) if newest is None else newest
    missing = _known_brokers(copy) - {each.broker_id for each in facts} - set(without)
    if missing:
        names = ", ".join(map(str, sorted(missing)))
        raise RecoveryError(
            f"what broker {names} knows is missing: export it there, or, if its directories are gone for good, give "
            "--without for it; what only it knows is lost then"
        )
    copy, made_again = _with_whole_topics(copy)
    image, store = _image(copy), _image(MetadataCopy(rows.values(), 0), known=MetadataImage())
    logs = _sound_logs(facts, copy)
    values = {row[0]: row[1] for row in copy.rows.values() if not row[0].startswith(_OF_THE_OLD_STORE)}
    partitions, problems = [], made_again
    kept: list[tuple[TopicId, int, PartitionImage]] = []
    for topic in image.topics.values():
        for number, state in enumerate(topic.partitions):
            if not state.is_known:
                continue  # Unreadable records are written unchanged.
            known = logs.get((topic_id_text(topic.topic_id), number), {})
            found = choose_members(image, topic, number, known)
            record = _recovered_state(state, _state_in(store, topic.topic_id, number), found, known)
            values[keys.partition(topic.topic_id, number)] = encode(record)
            partitions.append(_shown(topic, number, found, record.leader_epoch))
            if found.end is None:
                problems.append(f"{topic.name}-{number}: {without_logs(state)}")
                kept.append((topic.topic_id, number, state))
    _raise_counters(values, facts, copy, rows)
    for broker_id, replicas in still_stale(image, kept).items():
        values[keys.stale(broker_id, _registration(copy.rows, broker_id).registered)] = encode(
            encode_replicas(replicas)
        )
    history = HistoryRecord(history_id, raft_surplus, copy.history_id, copy.revision)
    for key, each in image.unreadable.items():
        problems.append(f"{key.decode(errors='replace')} can't be read, and is kept as it is: {each.reason}")
    back, gone = image.topics.keys() - store.topics.keys(), store.topics.keys() - image.topics.keys()
    problems += [f"topic {name} is in the store, and no broker knows of it: it is forgotten" for name in sorted(gone)]
    return RecoveryPlan(
        values,
        history,
        source,
        copy.revision,
        tuple(partitions),
        tuple(sorted(back)),
        tuple(sorted(gone)),
        tuple(problems),
    )


def _state_in(store: MetadataImage, topic_id: TopicId, number: int) -> PartitionImage | None:
    topic = store.topic_by_id(topic_id)
    return topic.partitions[number] if topic is not None and number < len(topic.partitions) else None


def _recovered_state(
    state: PartitionImage, now: PartitionImage | None, found: Choice, known: Mapping[BrokerId, ReplicaLog]
) -> PartitionRecord:
    """Returns a partition's new state, with epochs above those of its copy, the store and its logs."""
    epochs = [
        state.leader_epoch,
        now.leader_epoch if now else 0,
        *(log.replica.leader_epoch for log in known.values()),
    ]
    return state.changed(
        isr=found.isr,
        isr_epochs=(LONG_AGO,) * len(found.isr),
        elr=found.elr,
        elr_epochs=(LONG_AGO,) * len(found.elr),
        leader=NO_LEADER,
        leader_epoch=max(epochs) + EPOCH_JUMP,
        partition_epoch=max(state.partition_epoch, now.partition_epoch if now else 0) + 1,
    )


def _shown(topic: TopicImage, number: int, found: Choice, leader_epoch: LeaderEpoch) -> RecoveredPartition:
    state = topic.partitions[number]
    return RecoveredPartition(
        topic.name, number, state.isr, found.isr, leader_epoch, found.start, found.end, state.elr, found.elr, found.loss
    )


def _sound_logs(facts: Sequence[BrokerFacts], copy: MetadataCopy) -> dict[tuple[str, int], dict[BrokerId, ReplicaLog]]:
    """Returns the logs of each broker by topic id and partition, without restored directories (rule DR8)."""
    found: dict[tuple[str, int], dict[BrokerId, ReplicaLog]] = {}
    for each in facts:
        newest = _registered(each, copy)
        for directory in each.directories:
            if directory.registration == newest:
                for replica in directory.replicas:
                    log = ReplicaLog(replica, directory.may_lack_records)
                    found.setdefault((replica.topic_id, replica.partition), {})[each.broker_id] = log
    return found


def _registered(facts: BrokerFacts, copy: MetadataCopy) -> int:
    known = _registration(copy.rows, facts.broker_id).registered
    return max([known, *(directory.registration or 0 for directory in facts.directories)])


def _raise_counters(
    values: dict[bytes, bytes], facts: Sequence[BrokerFacts], copy: MetadataCopy, rows: Mapping[bytes, Row]
) -> None:
    given = {each.broker_id: each for each in facts}
    for broker_id in _known_brokers(copy) | given.keys():
        known, now = _registration(copy.rows, broker_id), _registration(rows, broker_id)
        registered = _registered(given[broker_id], copy) if broker_id in given else known.registered
        record = RegistrationRecord(max(known.drawn, now.drawn, registered), registered)
        values[keys.registration(broker_id)] = encode(record)
    for key, jump in ((keys.CONTROLLER_EPOCH, 1), (keys.NEXT_PRODUCER_ID, PRODUCER_IDS_JUMP)):
        given_out = [_number(row) for row in (copy.rows.get(key), rows.get(key)) if row is not None]
        if None in given_out:
            raise RecoveryError(
                f"{key.decode()} can't be read: put a number there that is above all that were given out"
            )
        values[key] = b"%d" % (max([0, *(number for number in given_out if number is not None)]) + jump)


def _with_whole_topics(copy: MetadataCopy) -> tuple[MetadataCopy, list[str]]:
    """Restores unreadable topic records in the copy. Returns the new copy and a sentence for each.

    The partitions of such a topic would otherwise keep registrations of the old store, which mean nothing in a new one.
    """
    image, rows, said = _image(copy, MetadataImage()), dict(copy.rows), []
    for topic_id, partitions in image.loose_partitions.items():
        named = rows.get(keys.topic_id(topic_id))
        key = b"" if named is None else keys.TOPICS + named[1]
        if key in image.unreadable:
            rows[key] = (key, encode(TopicRecord(topic_id_text(topic_id), max(partitions) + 1)), *rows[key][2:])
            said.append(
                f"{key.decode(errors='replace')} can't be read, and is made again of the topic's {len(partitions)} "
                "partitions"
            )
    return MetadataCopy(rows.values(), copy.revision, history_id=copy.history_id, cluster_id=copy.cluster_id), said


def _number(row: Row) -> int | None:
    """Returns the number of a counter; None if it can't be read."""
    return int(row[1]) if row[1].isdigit() else None


def _known_brokers(copy: MetadataCopy) -> set[BrokerId]:
    names = (key.removeprefix(keys.KNOWN_BROKERS) for key in copy.rows if key.startswith(keys.KNOWN_BROKERS))
    return {int(name) for name in names if name.isdigit()}


def _registration(rows: Mapping[bytes, Row], broker_id: BrokerId) -> RegistrationRecord:
    """Returns a broker's registration count. Errors: RecoveryError."""
    row = rows.get(keys.registration(broker_id))
    try:
        return RegistrationRecord() if row is None else decode(row[0], row[1], RegistrationRecord)
    except MetadataCorruptError as error:
        raise RecoveryError(
            f"{error}; it has `drawn` and `registered`, numbers above all that the broker's directories have"
        ) from error


def _image(copy: MetadataCopy, known: MetadataImage = NOTHING_KNOWN) -> MetadataImage:
    """Returns the image of a copy. Errors: RecoveryError if a needed key can't be read and `known` is empty."""
    try:
        return load_image((KeyValue(*row) for row in copy.rows.values()), copy.revision, prefix=b"", known=known)
    except NeededKeyError as error:
        raise RecoveryError(f"the newest copy of the metadata can't be used: {error}") from error
