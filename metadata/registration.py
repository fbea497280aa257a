"""Registers a broker so that a log directory that lost data is always detected (rule DR8).

Each start draws a new number from the store. The number is written durably to every sound log directory, and then to
the store, in the transaction that registers. A directory whose number is missing or behind the last registered one was
restored from a copy, or is new. The same transaction marks the replicas that it should hold, and only then is its
number written again. Replicas that no directory holds are marked too. Marked replicas can't be elected; joining the ISR
again removes the mark. A start after a machine crash is recorded in that transaction too, because unsynced data may be
gone (KIP-966).

If only the lease was lost and the process is alive, its directories are unchanged: it registers again under its number,
unless another process has registered as this broker meanwhile.

Guards: one registration per id; a lost answer is never guessed. A registration of a process that is certainly dead,
because its locked directories are now ours, is ended; any other is waited for.

A copy of a directory that was taken in the same life as the data it lacks can't be detected. Sources: Kafka's
`ClusterControlManager`; KIP-631, KIP-841; the model in tests/model/registration.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.broker_image import Replicas, encode_replicas
from lowtide.metadata.errors import (
    REMEDY,
    DuplicateBrokerError,
    InconsistentClusterError,
    OldBrokerError,
    StoreWentBackError,
)
from lowtide.metadata.image_follower import check_progress
from lowtide.metadata.records import (
    ELIGIBLE_LEADERS_LEVEL,
    LOG_START_REPORTING_LEVEL,
    BrokerRecord,
    FeaturesRecord,
    Listener,
    MetadataCorruptError,
    RegistrationRecord,
    SuspensionRecord,
    decode,
    encode,
)
from lowtide.metadata.store import (
    ABSENT,
    AmbiguousError,
    Compare,
    Get,
    LeaseGoneError,
    LeaseId,
    Put,
    Revision,
    UnavailableError,
)
from lowtide.metadata.writer import StoreBackoff

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.image_follower import ImageFollower
    from lowtide.metadata.store import KeyValue, MetadataStore, Operation, TransactionResult
    from lowtide.protocol.types import BrokerEpoch, BrokerId
    from lowtide.runtime.clock import Clock

T = TypeVar("T")

MISSING_NUMBER: Final = -1


class BrokerRegistration(msgspec.Struct, frozen=True):
    """A broker's description of itself; see `BrokerRecord`."""

    listeners: tuple[Listener, ...]
    rack: str | None = None
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL


class RegistrationDirectories(Protocol):
    """The log directories of the registering broker. Used only at a start, because calls sync."""

    def registrations(self) -> Mapping[str, int | None]:
        """Returns, by working directory, the number of its last registration, None if it has none."""

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        """Writes a number to these directories, durably. One that fails goes offline."""

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        """Returns the replicas expected here and on other brokers that are in no directory except `unsound` ones."""

    def may_lack_records(self) -> bool:
        """Returns whether a directory was in use at a machine crash, so that unsynced data may be gone."""

    def note_page_cache(self) -> None:
        """Marks the directories as recorded in the store: only a later machine crash counts.

        One that fails goes offline.
        """


class NoDirectories:
    """Used for a broker without directories, or with directories that no other could replace."""

    def registrations(self) -> Mapping[str, int | None]:
        return {}

    def write_registration(self, number: int, directories: Collection[str]) -> None: ...

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        return {}

    def may_lack_records(self) -> bool:
        return False

    def note_page_cache(self) -> None: ...


class ActiveRegistration(msgspec.Struct, frozen=True, gc=False):
    """A valid registration. `sent_ms` (monotonic): when its lease was requested or last renewed."""

    epoch: BrokerEpoch
    number: int
    lease: LeaseId
    sent_ms: int


class _DrawnNumber(msgspec.Struct, frozen=True):
    """A unique number, and its directories. The registration compares `revision`."""

    number: int
    revision: Revision
    sound: tuple[str, ...] = ()
    unsound: tuple[str, ...] = ()


class _ExistingKeys(msgspec.Struct, frozen=True):
    """The keys in the store that concern a registration."""

    broker: KeyValue | None
    registration: KeyValue | None
    features: KeyValue | None


class Registrar:
    """Registers one broker: at its start, and again after it lost its registration."""

    def __init__(
        self,
        *,
        store: MetadataStore,
        clock: Clock,
        prefix: bytes,
        broker_id: BrokerId,
        time_to_live_ms: int,
        follower: ImageFollower,
    ) -> None:
        """`follower` has the image that shows which replicas should be here."""
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._broker_id = broker_id
        self._time_to_live_ms = time_to_live_ms
        self._follower = follower
        self._record = BrokerRecord("", ())
        self._directories: RegistrationDirectories = NoDirectories()
        self._adopts = False
        self._number = 0
        self._held: set[int] = set()
        self._leases: dict[LeaseId, int] = {}
        self.store_is_older = False
        """Whether a log directory has a number that the store never drew: the store was lost or restored from a
        backup."""

    def begin(
        self,
        registration: BrokerRegistration,
        incarnation: str,
        directories: RegistrationDirectories,
        *,
        adopts: bool = False,
    ) -> None:
        """Sets the identity of a new process. `adopts`: the operator confirms that the store lost its history."""
        self._record = BrokerRecord(
            incarnation,
            registration.listeners,
            registration.rack,
            registration.inter_broker_listener,
            registration.metadata_level,
        )
        self._directories = directories
        self._adopts = adopts

    async def register(self, give_up_ms: int, offline: Replicas) -> ActiveRegistration:
        """Registers, with these replicas as offline. Waits while an earlier registration may belong to a live process.

        Errors: DuplicateBrokerError after `give_up_ms` (monotonic), or at once if another process has registered since;
        OldBrokerError; UnavailableError, LeaseGoneError, AmbiguousError after `give_up_ms`.
        """
        backoff = StoreBackoff()
        while True:
            try:
                registered = await self._try_to_register(give_up_ms, offline)
            except (UnavailableError, LeaseGoneError, AmbiguousError):
                if self._clock.monotonic_ms() >= give_up_ms:
                    raise
                await backoff.wait()
            else:
                if registered is not None:
                    self._leases.clear()
                    return registered

    async def _try_to_register(self, give_up_ms: int, offline: Replicas) -> ActiveRegistration | None:
        """Returns None if another number was drawn meanwhile."""
        first = self._number == 0
        drawn = await self._draw() if first else self._drawn_before(await self._look())
        if first:
            self._directories.write_registration(drawn.number, drawn.sound)
        registered = await self._register_as(drawn, give_up_ms, offline, first=first)
        if first and registered is not None:
            self._directories.write_registration(drawn.number, drawn.unsound)
            self._directories.note_page_cache()
            self._number = registered.number
        return registered

    async def _draw(self) -> _DrawnNumber:
        """Draws a number above all drawn ones and those of the directories, because the store may have been lost."""
        numbers = self._directories.registrations()
        owned = {path: MISSING_NUMBER if number is None else number for path, number in numbers.items()}
        self._held.update(owned.values())
        key = self._key(keys.registration(self._broker_id))
        while True:
            pair = await self._store.get(key)
            record = _registration(pair)
            newest = max(owned.values(), default=MISSING_NUMBER)
            self.store_is_older = newest > record.drawn
            if self.store_is_older and not self._adopts:
                raise StoreWentBackError(
                    f"the metadata store was put back to an earlier state: broker {self._broker_id} has registered "
                    f"{record.drawn} times there, and has number {newest} in a log directory"
                )
            number = max(record.drawn, newest) + 1
            unchanged = Compare(key, "modify", "==", ABSENT if pair is None else pair.modify_revision)
            with suppress(AmbiguousError):  # If this number was drawn without an answer, another one is drawn.
                put = Put(key, encode(RegistrationRecord(number, record.registered)))
                result = await self._store.transact([unchanged], [put])
                if result.succeeded:
                    unsound = tuple(path for path, own in owned.items() if own < record.registered)
                    return _DrawnNumber(
                        number, result.revision, tuple(path for path in owned if path not in unsound), unsound
                    )

    def _drawn_before(self, others: _ExistingKeys) -> _DrawnNumber:
        """Returns this process's number, if it is still the last registered one. Errors: DuplicateBrokerError."""
        pair = others.registration
        if pair is None or _registration(pair).registered != self._number:
            raise DuplicateBrokerError(f"another process registered as broker {self._broker_id} since this one did")
        return _DrawnNumber(self._number, pair.modify_revision)

    async def _register_as(
        self, drawn: _DrawnNumber, give_up_ms: int, offline: Replicas, *, first: bool
    ) -> ActiveRegistration | None:
        """Writes the broker's key under a new lease, with its number.

        Returns None if another number was drawn meanwhile.
        """
        backoff = StoreBackoff()
        while True:
            others = await self._look()
            if others.broker is None:
                if others.registration is None or others.registration.modify_revision != drawn.revision:
                    return None
                self._check_level(others.features)
                missing = await self._missing(drawn) if first else {}
                sent_ms = self._clock.monotonic_ms()
                lease = await self._store.lease_grant(self._time_to_live_ms)
                self._leases[lease] = sent_ms
                result = await self._transact(drawn, lease, offline, missing, others.features, first=first)
                if result is not None and result.succeeded:
                    return ActiveRegistration(result.revision, drawn.number, lease, sent_ms)
            elif others.broker.lease in self._leases:  # An earlier attempt of ours, whose answer was lost.
                lease, number = others.broker.lease, _registration(others.registration).registered
                return ActiveRegistration(others.broker.create_revision, number, lease, self._leases[lease])
            elif self._is_dead(others):
                await self._store.lease_revoke(others.broker.lease)
            else:
                if self._clock.monotonic_ms() >= give_up_ms:
                    raise DuplicateBrokerError(f"another broker with id {self._broker_id} is alive")
                await backoff.wait()

    async def _transact(
        self,
        drawn: _DrawnNumber,
        lease: LeaseId,
        offline: Replicas,
        missing: Replicas,
        features: KeyValue | None,
        *,
        first: bool,
    ) -> TransactionResult | None:
        """Runs the registering transaction. Returns None if its answer was lost."""
        broker, registration = keys.broker(self._broker_id), keys.registration(self._broker_id)
        compares = [
            Compare(self._key(broker), "create", "==", ABSENT),
            Compare(self._key(registration), "modify", "==", drawn.revision),
            Compare(self._key(keys.SUSPENSION), "create", "==", ABSENT),
        ]
        record = encode(self._record)
        operations: list[Operation] = [
            Put(self._key(broker), record, lease),
            Put(self._key(keys.known_broker(self._broker_id)), record),
        ]
        if first:
            operations.append(Put(self._key(registration), encode(RegistrationRecord(drawn.number, drawn.number))))
        if first and self._directories.may_lack_records():
            operations.append(Put(self._key(keys.unclean_start(self._broker_id)), encode(drawn.number)))
        if missing:
            operations.append(
                Put(self._key(keys.stale(self._broker_id, drawn.number)), encode(encode_replicas(missing)))
            )
        if offline:
            operations.append(Put(self._key(keys.offline(self._broker_id)), encode(encode_replicas(offline)), lease))
        if self._record.metadata_level < ELIGIBLE_LEADERS_LEVEL:
            # A broker that finalizes features meanwhile doesn't know of this one: one of the two must fail.
            compares.append(
                Compare(
                    self._key(keys.FEATURES), "modify", "==", ABSENT if features is None else features.modify_revision
                )
            )
            operations.append(
                Put(self._key(keys.FEATURES), encode(FeaturesRecord()) if features is None else features.value)
            )
        try:
            return await self._store.transact(compares, operations)
        except AmbiguousError:
            return None

    async def _look(self) -> _ExistingKeys:
        """Reads the keys that concern the registration, at one revision.

        Errors: InconsistentClusterError if the store went back or is suspended.
        """
        seen = self._follower.image.revision
        wanted = [keys.broker(self._broker_id), keys.registration(self._broker_id), keys.FEATURES, keys.SUSPENSION]
        result = await self._store.transact([], [Get(self._key(key)) for key in wanted])
        check_progress(seen, result.revision)
        *others, suspension = result.gets
        if suspension is not None:
            reason = _read(suspension, SuspensionRecord).reason
            raise InconsistentClusterError(f"the metadata store is suspended, {reason}; {REMEDY}")
        return _ExistingKeys(*others)

    async def _missing(self, drawn: _DrawnNumber) -> Replicas:
        """Returns what this broker should have but hasn't, by an image in which no other process can be this broker."""
        image = await self._follower.image_from(await self._store.revision())
        return self._directories.missing_replicas(image, drawn.unsound)

    def _is_dead(self, others: _ExistingKeys) -> bool:
        """Returns whether the registered broker held directories that are locked by us now, so it can't be alive."""
        registered = _registration(others.registration).registered
        return self._number == 0 and registered > 0 and registered in self._held

    def _check_level(self, features: KeyValue | None) -> None:
        agreed = FeaturesRecord() if features is None else _read(features, FeaturesRecord)
        if LOG_START_REPORTING_LEVEL <= self._record.metadata_level < agreed.required_level:
            raise OldBrokerError(
                f"broker {self._broker_id} has metadata level {self._record.metadata_level}, and the brokers of this "
                f"cluster rely on level {agreed.required_level}, which can't be taken back: it needs a newer Lowtide"
            )
        if agreed.log_start_reporting and self._record.metadata_level < LOG_START_REPORTING_LEVEL:
            raise OldBrokerError(
                f"broker {self._broker_id} is set to an inter.broker.protocol.version below 0.11.0, and the brokers of "
                "this cluster have agreed to report log start offsets, which can't be taken back: raise it, "
                "or leave it out"
            )

    def _key(self, key: bytes) -> bytes:
        return self._prefix + key


def _registration(pair: KeyValue | None) -> RegistrationRecord:
    return RegistrationRecord() if pair is None else _read(pair, RegistrationRecord)


def _read(pair: KeyValue, kind: type[T]) -> T:
    """Decodes a record that a registration needs. Errors: UnavailableError until an unreadable one is repaired."""
    try:
        return decode(pair.key, pair.value, kind)
    except MetadataCorruptError as error:
        raise UnavailableError(str(error)) from error
