"""What an image shows of brokers: live ones and their addresses, shutdowns, and unreliable replicas.

Five kinds of keys describe a broker besides its registration. Two live with its lease: its request to stop, and its
replicas in failed log directories. Three outlive it: its last registration, which makes it a known broker until it is
unregistered; marks on replicas whose log directory lost data (rule DR8); and its last start that may have lost unsynced
data (KIP-966). Such replicas count as stale, or as possibly incomplete, until they join the ISR under a later revision.

Guards: a report under an earlier registration is invalid for a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.draft import Draft
from lowtide.metadata.records import (
    LOG_START_REPORTING_LEVEL,
    BrokerRecord,
    Listener,
    MetadataCorruptError,
    ReplicaNumbers,
    decode,
)
from lowtide.protocol.types import BrokerEpoch, BrokerId, TopicId, parse_topic_id, topic_id_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import KeyEvent, KeyValue, Revision

Replicas: TypeAlias = "Mapping[TopicId, frozenset[int]]"
"""Some replicas of one broker: partition numbers by topic id."""


class BrokerImage(msgspec.Struct, frozen=True, gc=False):
    """A live or former broker: `epoch` is the revision of its last registration."""

    broker_id: BrokerId
    epoch: BrokerEpoch
    listeners: tuple[Listener, ...]
    rack: str | None = None
    incarnation: str = ""
    in_controlled_shutdown: bool = False
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL
    is_cordoned: bool = False
    """Whether all its log directories are cordoned: it takes no new partitions."""

    def listener(self, name: str) -> Listener | None:
        """Returns its listener with this name, or None."""
        return next((listener for listener in self.listeners if listener.name == name), None)

    @property
    def is_reachable(self) -> bool:
        """Whether its addresses are known; an unreadable record has none."""
        return bool(self.listeners)

    @property
    def inter_broker(self) -> Listener:
        """The listener for other brokers: the one that it names, else its first."""
        return self.listener(self.inter_broker_listener) or self.listeners[0]


class StaleMark(msgspec.Struct, frozen=True):
    """Replicas that lost data, found at the registration with this `number`, which is of `revision`.

    `replicas` is None for an unreadable mark, which may concern any replica.
    """

    number: int
    revision: Revision
    replicas: Replicas | None

    def covers(self, topic_id: TopicId, number: int) -> bool:
        return self.replicas is None or number in self.replicas.get(topic_id, ())


class BrokersImage(msgspec.Struct, frozen=True):
    """Everything that an image shows of brokers, by id. The mappings must not be changed."""

    alive: Mapping[BrokerId, BrokerImage] = {}
    shutdowns: Mapping[BrokerId, BrokerEpoch] = {}
    offline_replicas: Mapping[BrokerId, Replicas] = {}
    stale_marks: Mapping[BrokerId, tuple[StaleMark, ...]] = {}
    known: Mapping[BrokerId, BrokerImage] = {}
    unclean_starts: Mapping[BrokerId, BrokerEpoch] = {}


def encode_replicas(replicas: Replicas) -> ReplicaNumbers:
    """Returns the form in which the store keeps `replicas`."""
    named = {topic_id_text(topic_id): sorted(numbers) for topic_id, numbers in replicas.items() if numbers}
    return dict(sorted(named.items()))


def _decode_replicas(key: bytes, value: bytes) -> Replicas:
    named = decode(key, value, dict[str, list[int]])
    try:
        return {parse_topic_id(identity): frozenset(numbers) for identity, numbers in named.items()}
    except ValueError as error:
        raise MetadataCorruptError(f"{key.decode(errors='replace')} in the metadata store: {error}") from error


class BrokersChange:
    """Builds the brokers of the next image. Copies a mapping only when it changes."""

    def __init__(self, old: BrokersImage, kept: BrokersImage) -> None:
        """`kept` is the previous state. `old` is empty instead when everything is read again."""
        self._old = old
        self._kept = kept
        self._alive = Draft(old.alive)
        self._shutdowns = Draft(old.shutdowns)
        self._offline = Draft(old.offline_replicas)
        self._stale = Draft(old.stale_marks)
        self._known = Draft(old.known)
        self._unclean_starts = Draft(old.unclean_starts)
        self.touched: dict[BrokerId, None] = {}
        """Brokers that may differ."""

    def apply(self, key: bytes, change: KeyValue | KeyEvent) -> bool:
        """Applies a change of a broker. Returns False for other keys."""
        value = change.value
        if key.startswith(keys.BROKERS):
            broker_id = self._touch(key, keys.BROKERS)
            broker = None if value is None else _broker(broker_id, change.create_revision, key, value)
            self._alive.put(broker_id, broker)
        elif key.startswith(keys.KNOWN_BROKERS):
            broker_id = self._touch(key, keys.KNOWN_BROKERS)
            # Written with the registration, so its revision is that broker epoch.
            broker = None if value is None else _broker(broker_id, change.modify_revision, key, value)
            self._known.put(broker_id, broker)
        elif key.startswith(keys.SHUTDOWNS):
            self._shutdowns.put(self._touch(key, keys.SHUTDOWNS), None if value is None else decode(key, value, int))
        elif key.startswith(keys.OFFLINE):
            broker_id = self._touch(key, keys.OFFLINE)
            self._offline.put(broker_id, None if value is None else _decode_replicas(key, value))
        elif key.startswith(keys.STALE):
            self._apply_stale(key, change)
        elif key.startswith(keys.UNCLEAN_STARTS):
            # Written with the registration, so its revision is that broker epoch.
            start = None if value is None else change.modify_revision
            self._unclean_starts.put(self._touch(key, keys.UNCLEAN_STARTS), start)
        else:
            return False
        return True

    def hold(self, key: bytes, change: KeyValue | KeyEvent) -> bool:
        """Keeps the known value of an unreadable key, or a harmless one. Returns whether it was known.

        Errors: ValueError if the key names nothing.
        """
        if key.startswith(keys.STALE):
            broker_id, number = keys.parse_stale(key)
            kept = next((mark for mark in self._kept.stale_marks.get(broker_id, ()) if mark.number == number), None)
            self._put_mark(
                broker_id, StaleMark(number, change.modify_revision, None if kept is None else kept.replicas)
            )
            return kept is not None and kept.replicas is not None
        if key.startswith(keys.BROKERS):
            broker_id = self._touch(key, keys.BROKERS)
            broker = self._kept.alive.get(broker_id)
            is_same = broker is not None and broker.epoch == change.create_revision
            return self._alive.put(broker_id, broker if is_same else None)
        if key.startswith(keys.KNOWN_BROKERS):
            broker_id = self._touch(key, keys.KNOWN_BROKERS)
            before = self._kept.known.get(broker_id) or BrokerImage(broker_id, 0, ())
            self._known.put(broker_id, msgspec.structs.replace(before, epoch=change.modify_revision))
            return before.is_reachable
        if key.startswith(keys.SHUTDOWNS):
            broker_id = self._touch(key, keys.SHUTDOWNS)
            return self._shutdowns.put(broker_id, self._kept.shutdowns.get(broker_id))
        broker_id = self._touch(key, keys.OFFLINE)
        return self._offline.put(broker_id, self._kept.offline_replicas.get(broker_id))

    def finish(self) -> BrokersImage:
        if not self.touched:
            return self._old
        for broker_id in self.touched:
            broker = self._alive.now.get(broker_id)
            stopping = broker is not None and self._shutdowns.now.get(broker_id) == broker.epoch
            if broker is not None and broker.in_controlled_shutdown != stopping:
                self._alive.put(broker_id, msgspec.structs.replace(broker, in_controlled_shutdown=stopping))
        return BrokersImage(
            self._alive.now,
            self._shutdowns.now,
            self._offline.now,
            self._stale.now,
            self._known.now,
            self._unclean_starts.now,
        )

    def _apply_stale(self, key: bytes, change: KeyValue | KeyEvent) -> None:
        try:
            broker_id, number = keys.parse_stale(key)
        except ValueError as error:
            message = f"{key.decode(errors='replace')} in the metadata store is not the name of a mark"
            raise MetadataCorruptError(message) from error
        if change.value is None:
            self._remove_mark(broker_id, number)
        else:
            # With its last revision: a mark that was written again covers what joined before that too.
            self._put_mark(broker_id, StaleMark(number, change.modify_revision, _decode_replicas(key, change.value)))

    def _put_mark(self, broker_id: BrokerId, mark: StaleMark) -> None:
        self._stale.put(broker_id, (*self._remove_mark(broker_id, mark.number), mark))

    def _remove_mark(self, broker_id: BrokerId, number: int) -> tuple[StaleMark, ...]:
        self.touched[broker_id] = None
        marks = tuple(mark for mark in self._stale.now.get(broker_id, ()) if mark.number != number)
        self._stale.put(broker_id, marks or None)
        return marks

    def _touch(self, key: bytes, prefix: bytes) -> BrokerId:
        text = key.removeprefix(prefix)
        if not text.isdigit():
            raise MetadataCorruptError(f"{key.decode(errors='replace')} in the metadata store doesn't name a broker")
        broker_id = int(text)
        self.touched[broker_id] = None
        return broker_id


def _broker(broker_id: BrokerId, epoch: BrokerEpoch, key: bytes, value: bytes) -> BrokerImage:
    record = decode(key, value, BrokerRecord)
    return BrokerImage(
        broker_id,
        epoch,
        record.listeners,
        record.rack,
        record.incarnation,
        inter_broker_listener=record.inter_broker_listener,
        metadata_level=record.metadata_level,
        is_cordoned=record.is_cordoned,
    )
