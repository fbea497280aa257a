"""The process that starts the brokers of a machine: it serves their metadata, starts again what dies, and stops all in order.

There is no broker in it, so what one of them does can't hold it. Where the metadata are not in an etcd they are in the embedded store,
which is opened here: the death of a broker takes nothing from the others.

Start: the brokers of an earlier supervisor that died have ended → metadata store → brokers; where the metadata are new, the first broker
alone before the others, for it may have topics to take over. A broker that refuses to start stops all, as long as not all have served
once; later the others go on, and it is started again and again. Stop: all brokers at once, so that leaderships move as far as they can,
then the store.

Guards: the store is closed after its last user has ended; nothing is decided on a new store while a broker of an earlier one may act.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.config.broker_config import BrokerConfig, balance_rules
from lowtide.broker.lifecycle.supervisor.line import Away, Configuration, Give, PagesAsked, PagesGiven
from lowtide.broker.lifecycle.supervisor.member import Member
from lowtide.broker.lifecycle.supervisor.restarts import LAST_DELAY_MS, TOLD_MAX
from lowtide.broker.lifecycle.supervisor.shares import Share
from lowtide.metadata.embedded import LOCK_SUFFIX, METADATA_FILE, EmbeddedStore
from lowtide.metadata.etcd_address import EtcdAddress
from lowtide.metadata.writer import is_set_within
from lowtide.replication.leader_balance import LeaderBalance
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem, OsFileSystem
from lowtide.runtime.process import environment
from lowtide.runtime.service_manager import ServiceManager
from lowtide.runtime.tasks import TaskRegistry
from lowtide.storage.errors import StorageError
from lowtide.storage.log_directory import LOCK_FILE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lowtide.metadata.store import OwnedStore
    from lowtide.replication.leader_balance import BrokerLoad

REFUSED: Final = 2
"""The exit code of a broker that says why it can't start."""

EARLIER_LIMIT_MS: Final = 120_000
"""How long brokers of an earlier supervisor, which was killed, may take to end."""

_ASKED_TO_END: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})
"""Of a process that a service manager asked to end, too, before it could follow that in order."""

_LOOK_MS: Final = 100
_STORE_LOOK_MS: Final = 1000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is to run. `config` is what was configured for all; `command` starts the process of a broker."""

    config: BrokerConfig
    shares: tuple[Share, ...]
    command: tuple[str, ...]
    host_name: str
    etcd: EtcdAddress | None = None


class Supervisor:
    """The brokers, and what becomes of them. `run` once."""

    def __init__(
        self,
        *,
        members: Sequence[Member],
        store: OwnedStore | None,
        balance: LeaderBalance | None,
        clock: Clock,
        log: Any,
        service: ServiceManager,
    ) -> None:
        """`store` is what the brokers are served; None where each has a way of its own to an etcd.

        `balance` decides which leaderships move; None where none do.
        """
        self._members = members
        self._store = store
        self._balance = balance
        self._clock = clock
        self._log = log
        self._service = service
        self._tasks = TaskRegistry(self._on_task_failed)
        self._stopping = asyncio.Event()
        self._served = asyncio.Event()
        self._all_served = False
        self._exit_code = 0
        self._signals = 0

    def on_signal(self) -> None:
        """Stop; the second time wait for no client any more; the third time kill what still runs."""
        self._signals += 1
        self._stopping.set()
        for member in self._members if self._signals > 1 else ():
            if self._signals == 2:  # noqa: PLR2004 - the second one
                member.hurry()
            else:
                member.kill()

    def on_serves(self, member: Member) -> None:
        """A broker serves clients."""
        member.restarts.on_ready(self._clock.monotonic_ms())
        self._served.set()
        self._log.info("a broker serves", broker=member.node_id, pid=member.pid, address=member.address)
        self._say_who_is_away()
        addresses = [each.address for each in self._members]
        if all(addresses):
            self._all_served = True
            self._log.info("all brokers serve", processes=len(addresses), brokers=self._ids(), addresses=addresses)
            self._service.ready(f"{len(addresses)} brokers serve clients at {', '.join(addresses)}")

    def on_pages_asked(self, member: Member, asked: PagesAsked) -> None:
        """A broker wants the pages of metrics of the others."""
        self._tasks.spawn(self._give_pages(member, asked), name="pages of metrics")

    async def _give_pages(self, member: Member, asked: PagesAsked) -> None:
        others = [each for each in self._members if each is not member]
        pages = await asyncio.gather(*(each.page(asked.form) for each in others))
        member.send(
            PagesGiven(
                asked.number, tuple((each.node_id, page) for each, page in zip(others, pages, strict=True) if page)
            )
        )

    def on_load(self, load: BrokerLoad) -> None:
        """A broker says how busy it is: it may be the one that makes clear what should move."""
        if self._balance is None:
            return
        self._balance.on_load(load)
        for move in self._balance.moves(self._clock.monotonic_ms()):
            next(member for member in self._members if member.node_id == move.giver).send(Give(move))

    def _say_who_is_away(self) -> None:
        away = Away(tuple(each.node_id for each in self._members if not each.address))
        for member in self._members:
            member.send(away)

    async def run(self, *, first_alone: bool) -> int:
        """Run all until a signal, or until none can continue. Returns the exit code: 0 stopped, 1 failed, 2 refused.

        `first_alone`: the others are started when the first one serves.
        """
        self._tasks.spawn(self._watch_store(), name="metadata store")
        lives: list[asyncio.Task[int]] = []
        for member in self._members:
            lives.append(self._tasks.spawn(self._keep(member), name=f"broker {member.node_id}"))
            if first_alone and member is self._members[0]:
                await self._until_served_or_stopped()
            if self._stopping.is_set():
                break
        await self._stopping.wait()
        self._log.info("stopping", brokers=self._ids())
        self._service.stopping("the brokers stop")
        for member in self._members:
            member.stop()
        codes = await asyncio.gather(*lives)
        await self._tasks.cancel_all()
        self._service.close()
        return self._exit_code or (1 if any(codes) else 0)

    def _ids(self) -> list[int]:
        return [member.node_id for member in self._members]

    async def _until_served_or_stopped(self) -> None:
        waits = [self._tasks.spawn(_until(event), name="first broker") for event in (self._served, self._stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _keep(self, member: Member) -> int:
        """Run a broker again and again. Returns the exit code of its last life."""
        while True:
            try:
                code = await member.live()
            except OSError as error:
                self._log.error("a broker cannot be started", broker=member.node_id, reason=str(error))
                code = 1
            self._say_who_is_away()
            if self._balance is not None:
                self._balance.on_away(member.node_id)
            if self._stopping.is_set():
                return 0 if code in _ASKED_TO_END else code
            delay_ms = member.restarts.on_ended(self._clock.monotonic_ms())
            if code == REFUSED and not self._all_served:
                self._fail("a broker refuses to start, all are stopped", REFUSED, broker=member.node_id)
                return code
            self._say_how_it_ended(member, code, delay_ms)
            if await is_set_within(self._stopping, delay_ms):
                return 0

    def _say_how_it_ended(self, member: Member, code: int, delay_ms: int) -> None:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        if member.restarts.in_a_row <= TOLD_MAX:
            self._log.error(
                "a broker ended and is started again", broker=member.node_id, ended=ended, delay_ms=delay_ms
            )
        elif member.restarts.in_a_row == TOLD_MAX + 1:
            self._log.critical(
                "a broker does not stay up; the others continue, and it is started again and again without further lines like this",
                broker=member.node_id,
                ended=ended,
                delay_max_ms=LAST_DELAY_MS,
            )

    async def _watch_store(self) -> None:
        while self._store is not None:
            if self._store.failure is not None:
                self._fail("the metadata store has failed, all brokers are stopped", 1, reason=self._store.failure)
                return
            await asyncio.sleep(_STORE_LOOK_MS / 1000)

    def _fail(self, event: str, code: int, **fields: Any) -> None:
        if not self._stopping.is_set():
            self._log.critical(event, **fields)
            self._exit_code = code
            self._stopping.set()

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        self._fail(
            "a task of the supervisor failed, all brokers are stopped",
            1,
            task=name,
            error=f"{type(error).__name__}: {error}",
        )


async def supervise(plan: Plan, log: Any, version: str) -> int:
    """Run the brokers of a plan until SIGTERM or SIGINT.

    Returns the exit code. Errors: StorageError, MetadataStoreError, OSError.
    """
    clock, filesystem = SystemClock(), OsFileSystem()
    directory = plan.config.log_dirs[0]
    if plan.etcd is None:
        _check_not_in_use(filesystem, directory)
    await _until_earlier_ended([path for share in plan.shares for path in share.log_dirs], filesystem, clock, log)
    store = None if plan.etcd is not None else await _open(filesystem, clock, directory)
    try:
        place = "" if store is None else f"{directory}/{METADATA_FILE}"
        members: list[Member] = []
        rules = balance_rules(plan.config)
        supervisor = Supervisor(
            members=members,
            store=store,
            balance=None if rules is None else LeaderBalance(rules),
            clock=clock,
            log=log,
            service=ServiceManager(environment()),
        )
        for share in plan.shares:
            brokers = tuple(each.node_id for each in plan.shares)
            configuration = Configuration(dict(share.given), plan.host_name, place, plan.etcd, brokers)
            members.append(Member(share, plan.command, configuration, store, log, supervisor))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, supervisor.on_signal)
        log.info(
            "starting",
            version=version,
            processes=len(members),
            brokers=[member.node_id for member in members],
            metadata=place or "etcd",
        )
        return await supervisor.run(first_alone=store is not None and await store.revision() == 0)
    finally:
        if store is not None:
            await store.close()


def _check_not_in_use(filesystem: FileSystem, directory: str) -> None:
    """Errors: StorageError where another broker or supervisor has the metadata store open, or the directory cannot be created."""
    try:
        filesystem.make_directories(directory)
        filesystem.lock(f"{directory}/{METADATA_FILE}{LOCK_SUFFIX}").release()
    except AlreadyLockedError as error:
        raise StorageError(directory, "another broker uses this log directory") from error
    except OSError as error:
        raise StorageError(
            directory, f"the log directory cannot be created or written: {error.strerror or error}"
        ) from error


async def _until_earlier_ended(directories: Sequence[str], filesystem: FileSystem, clock: Clock, log: Any) -> None:
    """Return when no broker uses the directories: those of a supervisor that was killed stop by themselves.

    Errors: StorageError.
    """
    give_up_ms = clock.monotonic_ms() + EARLIER_LIMIT_MS
    said = False
    for directory in directories:
        while _is_in_use(filesystem, directory):
            if not said:
                said = True
                log.warning(
                    "a broker that was started earlier still uses a log directory, and is waited for",
                    directory=directory,
                )
            if clock.monotonic_ms() >= give_up_ms:
                raise StorageError(
                    directory, f"another broker uses this log directory, and has not ended within {EARLIER_LIMIT_MS} ms"
                )
            await asyncio.sleep(_LOOK_MS / 1000)


def _is_in_use(filesystem: FileSystem, directory: str) -> bool:
    if not filesystem.exists(directory):
        return False
    try:
        filesystem.lock(f"{directory}/{LOCK_FILE}").release()
    except AlreadyLockedError:
        return True
    except OSError:  # The broker whose directory it is finds that out, and says what it means.
        return False
    return False


async def _open(filesystem: FileSystem, clock: Clock, directory: str) -> OwnedStore:
    try:
        return await EmbeddedStore.open(f"{directory}/{METADATA_FILE}", filesystem=filesystem, clock=clock)
    except AlreadyLockedError as error:
        raise StorageError(directory, "another broker uses this log directory") from error


async def _until(event: asyncio.Event) -> None:
    await event.wait()
