"""How a broker registers: in an order in which a log directory that lost what was in it is always known for that (rule DR8).

Each start draws a number from the store that no start had before. The number is written to every sound log directory, durably, and
then to the store, in the transaction that registers. A directory whose number is missing or behind the last registered one was put back
from a copy, or is new: what it should hold is marked in the store, in that same transaction, and only then is its number written again. So
are replicas that no directory holds. A mark says that its replicas can't be elected; joining the ISR again removes it. A start after the
machine stopped under the broker is noted in that transaction too: what was not synced may be gone (KIP-966).

When only the lease was lost, and the process lived on, its directories are what they were: it registers again under its number, unless
another process has registered as this broker meanwhile.

Guards: one registration for each id; no answer that was lost is guessed at. A registration of a process that is dead for certain, for its
directories are ours now and have its number, is ended; any other is waited for.

Does not do: keeping the lease alive (`session`). A copy taken in the same life as what it lacks can't be distinguished from the directory.
Sources: Kafka's `ClusterControlManager`; KIP-631, KIP-841; the model in tests/model/registration.py.
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
from lowtide.metadata.writer import Retry

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
    """What a broker tells of itself; see `BrokerRecord`."""

    listeners: tuple[Listener, ...]
    rack: str | None = None
    inter_broker_listener: str = ""
    metadata_level: int = LOG_START_REPORTING_LEVEL


class LogDirectories(Protocol):
    """The log directories of the broker that registers. Called at a start only, for it syncs."""

    def registrations(self) -> Mapping[str, int | None]:
        """By directory that works, the number of the registration that reached it last, None where it has none."""
        ...

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        """Write a number to these directories, durably. One that fails goes offline."""
        ...

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        """The replicas that the image expects here, that others have too, and that no directory holds but for `unsound` ones."""
        ...

    def may_lack_records(self) -> bool:
        """Whether a directory was in use when the machine stopped: what was not synced then may be gone."""
        ...

    def note_page_cache(self) -> None:
        """The store knows what the directories may lack: from here on the next stop of the machine counts.

        One that fails goes offline.
        """
        ...


class NoDirectories:
    """Stands for the directories of a broker that has none, or whose directories no other could replace."""

    def registrations(self) -> Mapping[str, int | None]:
        """See `LogDirectories`."""
        return {}

    def write_registration(self, number: int, directories: Collection[str]) -> None:
        """See `LogDirectories`."""

    def missing_replicas(self, image: MetadataImage, unsound: Collection[str]) -> Replicas:
        """See `LogDirectories`."""
        return {}

    def may_lack_records(self) -> bool:
        """See `LogDirectories`."""
        return False

    def note_page_cache(self) -> None:
        """See `LogDirectories`."""


class Registered(msgspec.Struct, frozen=True, gc=False):
    """A registration in force. `sent_ms` (monotonic): when its lease was asked for, or renewed last."""

    epoch: BrokerEpoch
    number: int
    lease: LeaseId
    sent_ms: int


class _Drawn(msgspec.Struct, frozen=True):
    """A unique number, and what it was drawn for. `revision` is what the registration compares with."""

    number: int
    revision: Revision
    sound: tuple[str, ...] = ()
    unsound: tuple[str, ...] = ()


class _Others(msgspec.Struct, frozen=True):
    """What stood in the way of a registration."""

    broker: KeyValue | None
    registration: KeyValue | None
    features: KeyValue | None


class Registrar:
    """Registers one broker: at its start, and again whenever it lost its registration."""

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
        """`follower` has the image that tells which replicas should be here."""
        self._store = store
        self._clock = clock
        self._prefix = prefix
        self._broker_id = broker_id
        self._time_to_live_ms = time_to_live_ms
        self._follower = follower
        self._record = BrokerRecord("", ())
        self._directories: LogDirectories = NoDirectories()
        self._adopts = False
        self._number = 0
        self._held: set[int] = set()
        self._leases: dict[LeaseId, int] = {}
        self.store_is_older = False
        """Whether a log directory has a number that the store never drew: the store was lost, or put back from a backup."""

    def begin(
        self, registration: BrokerRegistration, incarnation: str, directories: LogDirectories, *, adopts: bool = False
    ) -> None:
        """A new process: say who it is.

        `adopts`: the operator knows that the store has forgotten what the directories have seen.
        """
        self._record = BrokerRecord(
            incarnation,
            registration.listeners,
            registration.rack,
            registration.inter_broker_listener,
            registration.metadata_level,
        )
        self._directories = directories
        self._adopts = adopts

    async def register(self, give_up_ms: int, offline: Replicas) -> Registered:
        """Register, with these replicas as offline.

        Waits while an earlier registration lives that may be another process's. Errors: DuplicateBrokerError after
        `give_up_ms` (monotonic), or at once when another process registered since we did; OldBrokerError;
        UnavailableError, LeaseGoneError, AmbiguousError after `give_up_ms`.
        """
        retry = Retry()
        while True:
            try:
                registered = await self._try_to_register(give_up_ms, offline)
            except (UnavailableError, LeaseGoneError, AmbiguousError):
                if self._clock.monotonic_ms() >= give_up_ms:
                    raise
                await retry.wait()
            else:
                if registered is not None:
                    self._leases.clear()
                    return registered

    async def _try_to_register(self, give_up_ms: int, offline: Replicas) -> Registered | None:
        """Returns None when another number was drawn meanwhile."""
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

    # Numbers

    async def _draw(self) -> _Drawn:
        """Take a number that is above all that were drawn, and all that the directories have: their store may have been lost."""
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
                    f"the metadata store was put back to an earlier state: broker {self._broker_id} has registered {record.drawn} times "
                    f"there, and has number {newest} in a log directory"
                )
            number = max(record.drawn, newest) + 1
            unchanged = Compare(key, "modify", "==", ABSENT if pair is None else pair.modify_revision)
            with suppress(AmbiguousError):  # Then the number may be drawn without an owner: another one is drawn.
                put = Put(key, encode(RegistrationRecord(number, record.registered)))
                result = await self._store.transact([unchanged], [put])
                if result.succeeded:
                    unsound = tuple(path for path, own in owned.items() if own < record.registered)
                    return _Drawn(
                        number, result.revision, tuple(path for path in owned if path not in unsound), unsound
                    )

    def _drawn_before(self, others: _Others) -> _Drawn:
        """The number of this process, if it is still the last that was registered. Errors: DuplicateBrokerError."""
        pair = others.registration
        if pair is None or _registration(pair).registered != self._number:
            message = f"another process registered as broker {self._broker_id} since this one did"
            raise DuplicateBrokerError(message)
        return _Drawn(self._number, pair.modify_revision)

    # Registration

    async def _register_as(
        self, drawn: _Drawn, give_up_ms: int, offline: Replicas, *, first: bool
    ) -> Registered | None:
        """Put the broker's key under a new lease, with its number.

        Returns None when another number was drawn meanwhile.
        """
        retry = Retry()
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
                    return Registered(result.revision, drawn.number, lease, sent_ms)
            elif others.broker.lease in self._leases:  # An earlier attempt of ours, whose answer was lost.
                lease, number = others.broker.lease, _registration(others.registration).registered
                return Registered(others.broker.create_revision, number, lease, self._leases[lease])
            elif self._is_dead(others):
                await self._store.lease_revoke(others.broker.lease)
            else:
                if self._clock.monotonic_ms() >= give_up_ms:
                    message = f"another broker with id {self._broker_id} is alive"
                    raise DuplicateBrokerError(message)
                await retry.wait()

    async def _transact(
        self,
        drawn: _Drawn,
        lease: LeaseId,
        offline: Replicas,
        missing: Replicas,
        features: KeyValue | None,
        *,
        first: bool,
    ) -> TransactionResult | None:
        """The transaction that registers. Returns None when its answer was lost."""
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
            # A broker that finalizes features meanwhile does so without knowing of this one: one of the two has to
            # fail.
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

    async def _look(self) -> _Others:
        """What stands in the way, as of one moment.

        Errors: InconsistentClusterError when the store went back, or is suspended.
        """
        seen = self._follower.image.revision
        wanted = [keys.broker(self._broker_id), keys.registration(self._broker_id), keys.FEATURES, keys.SUSPENSION]
        result = await self._store.transact([], [Get(self._key(key)) for key in wanted])
        check_progress(seen, result.revision)
        *others, suspension = result.gets
        if suspension is not None:
            reason = _read(suspension, SuspensionRecord).reason
            raise InconsistentClusterError(f"the metadata store is suspended, {reason}; {REMEDY}")
        return _Others(*others)

    async def _missing(self, drawn: _Drawn) -> Replicas:
        """What this broker should have and hasn't, by an image in which no other process can be this broker any more."""
        image = await self._follower.image_from(await self._store.revision())
        return self._directories.missing_replicas(image, drawn.unsound)

    def _is_dead(self, others: _Others) -> bool:
        """Whether the registered broker had directories that are ours now: it can't live, for they are locked while it does."""
        registered = _registration(others.registration).registered
        return self._number == 0 and registered > 0 and registered in self._held

    def _check_level(self, features: KeyValue | None) -> None:
        agreed = FeaturesRecord() if features is None else _read(features, FeaturesRecord)
        if agreed.log_start_reporting and self._record.metadata_level < LOG_START_REPORTING_LEVEL:
            message = (
                f"broker {self._broker_id} is set to an inter.broker.protocol.version below 0.11.0, and the brokers of this cluster have "
                "agreed to report log start offsets, which can't be taken back: raise it, or leave it out"
            )
            raise OldBrokerError(message)

    def _key(self, key: bytes) -> bytes:
        return self._prefix + key


def _registration(pair: KeyValue | None) -> RegistrationRecord:
    return RegistrationRecord() if pair is None else _read(pair, RegistrationRecord)


def _read(pair: KeyValue, kind: type[T]) -> T:
    """A record that a registration relies on.

    Errors: UnavailableError for one that can't be read, until it is repaired.
    """
    try:
        return decode(pair.key, pair.value, kind)
    except MetadataCorruptError as error:
        raise UnavailableError(str(error)) from error
