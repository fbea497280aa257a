"""The process that runs the brokers of a machine: it serves their metadata, restarts failed brokers, and stops all.

It contains no broker, so no broker can block it. Without etcd it opens the embedded metadata store, so that the death
of a broker does not affect the others.

Start: wait for the brokers of a killed supervisor → metadata store → brokers; with new metadata the first broker starts
alone, because it may take over topics. A broker that refuses to start stops all, unless all have served before; later
it is restarted while the others continue. Stop: all brokers at once, so that leaderships move as far as possible, then
the store.

Guards: the store is closed after its last user has ended; no store is opened while a broker of an earlier supervisor
may act.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lowtide.broker.config.broker_config import BrokerConfig, balance_rules
from lowtide.broker.lifecycle.embedded_store import open_embedded
from lowtide.broker.lifecycle.supervisor.line import (
    AwayBrokers,
    Configuration,
    GiveLeadership,
    PagesRequest,
    PagesResponse,
)
from lowtide.broker.lifecycle.supervisor.member import LAST_DELAY_MS, LOGGED_ENDS_MAX, BrokerProcess
from lowtide.broker.lifecycle.supervisor.shares import BrokerShare
from lowtide.metadata.embedded import LOCK_SUFFIX, METADATA_FILE
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
"""The exit code of a broker that refuses to start."""

EARLIER_LIMIT_MS: Final = 120_000
"""The time that brokers of a killed supervisor may take to end."""

_ASKED_TO_END: Final = frozenset({-signal.SIGTERM, -signal.SIGINT})
"""Exit codes of a process that a service manager terminated before it could stop gracefully."""

_LOOK_MS: Final = 100
_STORE_LOOK_MS: Final = 1000


class SupervisorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The brokers to run. `config` is the common configuration; `command` starts a broker's process."""

    config: BrokerConfig
    shares: tuple[BrokerShare, ...]
    command: tuple[str, ...]
    host_name: str
    etcd: EtcdAddress | None = None


class Supervisor:
    """The brokers of a machine. Call `run` once."""

    def __init__(
        self,
        *,
        members: Sequence[BrokerProcess],
        store: OwnedStore | None,
        balance: LeaderBalance | None,
        clock: Clock,
        log: Any,
        service: ServiceManager,
    ) -> None:
        """`store` is served to the brokers; None if they connect to etcd.

        `balance` decides which leaderships move; None disables it.
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
        """Stops; the second signal stops waiting for clients; the third kills the remaining processes."""
        self._signals += 1
        self._stopping.set()
        for member in self._members if self._signals > 1 else ():
            if self._signals == 2:  # noqa: PLR2004 - the second one
                member.hurry()
            else:
                member.kill()

    def on_serves(self, member: BrokerProcess) -> None:
        member.restarts.on_ready(self._clock.monotonic_ms())
        self._served.set()
        self._log.info("broker ready", broker=member.node_id, pid=member.pid, address=member.address)
        self._announce_away()
        addresses = [each.address for each in self._members]
        if all(addresses):
            self._all_served = True
            self._log.info("all brokers ready", processes=len(addresses), brokers=self._ids(), addresses=addresses)
            self._service.ready(f"{len(addresses)} brokers serve clients at {', '.join(addresses)}")

    def on_pages_asked(self, member: BrokerProcess, asked: PagesRequest) -> None:
        self._tasks.spawn(self._give_pages(member, asked), name="pages of metrics")

    async def _give_pages(self, member: BrokerProcess, asked: PagesRequest) -> None:
        others = [each for each in self._members if each is not member]
        pages = await asyncio.gather(*(each.page(asked.form) for each in others))
        member.send(
            PagesResponse(
                asked.number, tuple((each.node_id, page) for each, page in zip(others, pages, strict=True) if page)
            )
        )

    def on_load(self, load: BrokerLoad) -> None:
        if self._balance is None:
            return
        self._balance.on_load(load)
        for move in self._balance.moves(self._clock.monotonic_ms()):
            next(member for member in self._members if member.node_id == move.giver).send(GiveLeadership(move))

    def _announce_away(self) -> None:
        away = AwayBrokers(tuple(each.node_id for each in self._members if not each.address))
        for member in self._members:
            member.send(away)

    async def run(self, *, first_alone: bool) -> int:
        """Runs all brokers until a signal, or until none can continue.

        Returns the exit code: 0 stopped, 1 failed, 2 refused. `first_alone`: the others start when the first one
        serves.
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
        waits = [self._tasks.spawn(event.wait(), name="first broker") for event in (self._served, self._stopping)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _keep(self, member: BrokerProcess) -> int:
        """Restarts a broker until the stop. Returns the exit code of its last process."""
        while True:
            try:
                code = await member.live()
            except OSError as error:
                self._log.error("broker process cannot be started", broker=member.node_id, reason=str(error))
                code = 1
            self._announce_away()
            if self._balance is not None:
                self._balance.on_away(member.node_id)
            if self._stopping.is_set():
                return 0 if code in _ASKED_TO_END else code
            delay_ms = member.restarts.on_ended(self._clock.monotonic_ms())
            if code == REFUSED and not self._all_served:
                self._fail("a broker refused to start, all brokers stop", REFUSED, broker=member.node_id)
                return code
            self._log_end(member, code, delay_ms)
            if await is_set_within(self._stopping, delay_ms):
                return 0

    def _log_end(self, member: BrokerProcess, code: int, delay_ms: int) -> None:
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        if member.restarts.in_a_row <= LOGGED_ENDS_MAX:
            self._log.error("broker ended, it is restarted", broker=member.node_id, ended=ended, delay_ms=delay_ms)
        elif member.restarts.in_a_row == LOGGED_ENDS_MAX + 1:
            self._log.critical(
                "broker keeps failing, it is restarted without further messages; the others continue",
                broker=member.node_id,
                ended=ended,
                delay_max_ms=LAST_DELAY_MS,
            )

    async def _watch_store(self) -> None:
        while self._store is not None:
            if self._store.failure is not None:
                self._fail("metadata store failed, all brokers stop", 1, reason=self._store.failure)
                return
            await asyncio.sleep(_STORE_LOOK_MS / 1000)

    def _fail(self, event: str, code: int, **fields: Any) -> None:
        if not self._stopping.is_set():
            self._log.critical(event, **fields)
            self._exit_code = code
            self._stopping.set()

    def _on_task_failed(self, name: str, error: BaseException) -> None:
        self._fail("supervisor task failed, all brokers stop", 1, task=name, error=f"{type(error).__name__}: {error}")


async def supervise(plan: SupervisorPlan, log: Any, version: str) -> int:
    """Runs the brokers of a plan until SIGTERM or SIGINT.

    Returns the exit code. Errors: StorageError, MetadataStoreError, OSError.
    """
    clock, filesystem = SystemClock(), OsFileSystem()
    directory = plan.config.log_dirs[0]
    if plan.etcd is None:
        _check_not_in_use(filesystem, directory)
    await _until_earlier_ended([path for share in plan.shares for path in share.log_dirs], filesystem, clock, log)
    store = None if plan.etcd is not None else await open_embedded(directory, filesystem, clock)
    try:
        place = "" if store is None else f"{directory}/{METADATA_FILE}"
        members: list[BrokerProcess] = []
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
            members.append(BrokerProcess(share, plan.command, configuration, store, log, supervisor))
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
    """Checks that no other process has the metadata store open, and creates the directory. Errors: StorageError."""
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
    """Waits until no broker uses the directories: those of a killed supervisor stop by themselves.

    Errors: StorageError.
    """
    give_up_ms = clock.monotonic_ms() + EARLIER_LIMIT_MS
    said = False
    for directory in directories:
        while _is_in_use(filesystem, directory):
            if not said:
                said = True
                log.warning("waiting for an earlier broker that still uses a log directory", directory=directory)
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
    except OSError:  # The broker of this directory reports it.
        return False
    return False
