"""What an image shows of brokers: who is alive and where, who wants to stop, and which of their replicas can't be relied on.

Five kinds of keys tell of a broker besides its registration. Two live with its lease: its wish to stop, and its replicas in failed log
directories. Three outlive it: what its last registration says of it, which makes it a known broker until it is unregistered;
marks on replicas whose log directory was found to lack what had been in it (rule DR8); and its last start that may have lost what was not
synced (KIP-966). Such a replica counts as stale, or as lacking records, until it has joined the ISR again, which is after that revision.

Guards: what was said under an earlier registration doesn't count for a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from lowtide.metadata import keys
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

    from lowtide.metadata.store import Event, KeyValue, Revision

T = TypeVar("T")

Replicas: TypeAlias = "Mapping[TopicId, frozenset[int]]"
"""Some replicas of one broker: the partitions' numbers by topic id."""


class BrokerImage(msgspec.Struct, frozen=True, gc=False):
    """A broker that is live, or was: `epoch` is the revision of its registration, the last one."""

    broker_id: BrokerId
    epoch: BrokerEpoch
    listeners: tuple[Listener, ...]
    rack: str | None = None
    incarnation: str = ""
    in_controlled_shutdown: bool = False
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL

    def listener(self, name: str) -> Listener | None:
        """Its listener with this name, or None."""
        return next((listener for listener in self.listeners if listener.name == name), None)

    @property
    def is_reachable(self) -> bool:
        """Whether its addresses are known; those of one whose record can't be read aren't."""
        return bool(self.listeners)

    @property
    def inter_broker(self) -> Listener:
        """Where other brokers reach it: the listener that it named for them, else its first one."""
        return self.listener(self.inter_broker_listener) or self.listeners[0]


class StaleMark(msgspec.Struct, frozen=True):
    """Replicas that were found to lack something, at the registration with this `number`, which is of `revision`.

    `replicas` is None for a mark that can't be read: it may be about any.
    """

    number: int
    revision: Revision
    replicas: Replicas | None

    def covers(self, topic_id: TopicId, number: int) -> bool:
        """Whether it is about a replica of this partition."""
        return self.replicas is None or number in self.replicas.get(topic_id, ())


class BrokersImage(msgspec.Struct, frozen=True):
    """All that an image shows of brokers, by their ids. The mappings must not be changed."""

    alive: Mapping[BrokerId, BrokerImage] = {}
    shutdowns: Mapping[BrokerId, BrokerEpoch] = {}
    offline_replicas: Mapping[BrokerId, Replicas] = {}
    stale_marks: Mapping[BrokerId, tuple[StaleMark, ...]] = {}
    known: Mapping[BrokerId, BrokerImage] = {}
    unclean_starts: Mapping[BrokerId, BrokerEpoch] = {}


def encode_replicas(replicas: Replicas) -> ReplicaNumbers:
    """What stands for `replicas` in the store."""
    named = {topic_id_text(topic_id): sorted(numbers) for topic_id, numbers in replicas.items() if numbers}
    return dict(sorted(named.items()))


def _decode_replicas(key: bytes, value: bytes) -> Replicas:
    named = decode(key, value, dict[str, list[int]])
    try:
        return {parse_topic_id(identity): frozenset(numbers) for identity, numbers in named.items()}
    except ValueError as error:
        message = f"{key.decode(errors='replace')} in the metadata store: {error}"
        raise MetadataCorruptError(message) from error


class BrokersChange:
    """One step from one such picture to the next. Copies a mapping at most once, and only if it changes."""

    def __init__(self, old: BrokersImage, kept: BrokersImage) -> None:
        """`kept` is what was known before, also where `old` is empty because everything is read again."""
        self._old = old
        self._kept = kept
        self._alive: dict[BrokerId, BrokerImage] | None = None
        self._shutdowns: dict[BrokerId, BrokerEpoch] | None = None
        self._offline: dict[BrokerId, Replicas] | None = None
        self._stale: dict[BrokerId, tuple[StaleMark, ...]] | None = None
        self._known: dict[BrokerId, BrokerImage] | None = None
        self._unclean_starts: dict[BrokerId, BrokerEpoch] | None = None
        self.touched: dict[BrokerId, None] = {}
        """The brokers of whom something may be different."""

    def apply(self, key: bytes, change: KeyValue | Event) -> bool:
        """Take over a change, if it is about brokers. Returns whether it is."""
        if key.startswith(keys.BROKERS):
            self._apply_broker(key, change)
        elif key.startswith(keys.KNOWN_BROKERS):
            self._apply_known(key, change)
        elif key.startswith(keys.SHUTDOWNS):
            self._apply_shutdown(key, change)
        elif key.startswith(keys.OFFLINE):
            self._apply_offline(key, change)
        elif key.startswith(keys.STALE):
            self._apply_stale(key, change)
        elif key.startswith(keys.UNCLEAN_STARTS):
            self._apply_unclean_start(key, change)
        else:
            return False
        return True

    def hold(self, key: bytes, change: KeyValue | Event) -> bool:
        """A key about brokers can't be read: show what was known, or what harms nothing. Returns whether it was known.

        Errors: ValueError where the key names nothing.
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
            return _set(self._to_change(), broker_id, broker if is_same else None)
        if key.startswith(keys.KNOWN_BROKERS):
            broker_id = self._touch(key, keys.KNOWN_BROKERS)
            before = self._kept.known.get(broker_id) or BrokerImage(broker_id, 0, ())
            if self._known is None:
                self._known = dict(self._old.known)
            self._known[broker_id] = msgspec.structs.replace(before, epoch=change.modify_revision)
            return before.is_reachable
        if key.startswith(keys.SHUTDOWNS):
            broker_id = self._touch(key, keys.SHUTDOWNS)
            if self._shutdowns is None:
                self._shutdowns = dict(self._old.shutdowns)
            return _set(self._shutdowns, broker_id, self._kept.shutdowns.get(broker_id))
        broker_id = self._touch(key, keys.OFFLINE)
        if self._offline is None:
            self._offline = dict(self._old.offline_replicas)
        return _set(self._offline, broker_id, self._kept.offline_replicas.get(broker_id))

    def finish(self) -> BrokersImage:
        """The new picture."""
        if not self.touched:
            return self._old
        old = self._old
        shutdowns = old.shutdowns if self._shutdowns is None else self._shutdowns
        for broker_id in self.touched:
            broker = (old.alive if self._alive is None else self._alive).get(broker_id)
            stopping = broker is not None and shutdowns.get(broker_id) == broker.epoch
            if broker is not None and broker.in_controlled_shutdown != stopping:
                self._to_change()[broker_id] = msgspec.structs.replace(broker, in_controlled_shutdown=stopping)
        return BrokersImage(
            old.alive if self._alive is None else self._alive,
            shutdowns,
            old.offline_replicas if self._offline is None else self._offline,
            old.stale_marks if self._stale is None else self._stale,
            old.known if self._known is None else self._known,
            old.unclean_starts if self._unclean_starts is None else self._unclean_starts,
        )

    def _to_change(self) -> dict[BrokerId, BrokerImage]:
        if self._alive is None:
            self._alive = dict(self._old.alive)
        return self._alive

    def _apply_broker(self, key: bytes, change: KeyValue | Event) -> None:
        broker_id = self._touch(key, keys.BROKERS)
        if change.value is None:
            self._to_change().pop(broker_id, None)
            return
        self._to_change()[broker_id] = _broker(
            broker_id, change.create_revision, decode(key, change.value, BrokerRecord)
        )

    def _apply_known(self, key: bytes, change: KeyValue | Event) -> None:
        broker_id = self._touch(key, keys.KNOWN_BROKERS)
        if self._known is None:
            self._known = dict(self._old.known)
        if change.value is None:
            self._known.pop(broker_id, None)
        else:
            # Written with the registration, so its revision is that broker epoch.
            self._known[broker_id] = _broker(broker_id, change.modify_revision, decode(key, change.value, BrokerRecord))

    def _apply_shutdown(self, key: bytes, change: KeyValue | Event) -> None:
        broker_id = self._touch(key, keys.SHUTDOWNS)
        if self._shutdowns is None:
            self._shutdowns = dict(self._old.shutdowns)
        if change.value is None:
            self._shutdowns.pop(broker_id, None)
        else:
            self._shutdowns[broker_id] = decode(key, change.value, int)

    def _apply_offline(self, key: bytes, change: KeyValue | Event) -> None:
        broker_id = self._touch(key, keys.OFFLINE)
        if self._offline is None:
            self._offline = dict(self._old.offline_replicas)
        if change.value is None:
            self._offline.pop(broker_id, None)
        else:
            self._offline[broker_id] = _decode_replicas(key, change.value)

    def _apply_stale(self, key: bytes, change: KeyValue | Event) -> None:
        try:
            broker_id, number = keys.parse_stale(key)
        except ValueError as error:
            message = f"{key.decode(errors='replace')} in the metadata store is not the name of a mark"
            raise MetadataCorruptError(message) from error
        if change.value is None:
            self._remove_mark(broker_id, number)
        else:
            # By the last revision: a mark that was written again covers what joined before that too.
            self._put_mark(broker_id, StaleMark(number, change.modify_revision, _decode_replicas(key, change.value)))

    def _put_mark(self, broker_id: BrokerId, mark: StaleMark) -> None:
        marks = self._remove_mark(broker_id, mark.number)
        marks[broker_id] = (*marks.get(broker_id, ()), mark)

    def _remove_mark(self, broker_id: BrokerId, number: int) -> dict[BrokerId, tuple[StaleMark, ...]]:
        self.touched[broker_id] = None
        if self._stale is None:
            self._stale = dict(self._old.stale_marks)
        marks = tuple(mark for mark in self._stale.pop(broker_id, ()) if mark.number != number)
        if marks:
            self._stale[broker_id] = marks
        return self._stale

    def _apply_unclean_start(self, key: bytes, change: KeyValue | Event) -> None:
        broker_id = self._touch(key, keys.UNCLEAN_STARTS)
        if self._unclean_starts is None:
            self._unclean_starts = dict(self._old.unclean_starts)
        if change.value is None:
            self._unclean_starts.pop(broker_id, None)
        else:
            # Written with the registration, so its revision is that broker epoch.
            self._unclean_starts[broker_id] = change.modify_revision

    def _touch(self, key: bytes, prefix: bytes) -> BrokerId:
        text = key.removeprefix(prefix)
        if not text.isdigit():
            message = f"{key.decode(errors='replace')} in the metadata store doesn't name a broker"
            raise MetadataCorruptError(message)
        broker_id = int(text)
        self.touched[broker_id] = None
        return broker_id


def _set(values: dict[BrokerId, T], broker_id: BrokerId, value: T | None) -> bool:
    """Set what is known, or nothing. Returns whether it is known."""
    if value is None:
        values.pop(broker_id, None)
    else:
        values[broker_id] = value
    return value is not None


def _broker(broker_id: BrokerId, epoch: BrokerEpoch, record: BrokerRecord) -> BrokerImage:
    return BrokerImage(
        broker_id,
        epoch,
        record.listeners,
        record.rack,
        record.incarnation,
        inter_broker_listener=record.inter_broker_listener,
        metadata_level=record.metadata_level,
    )
