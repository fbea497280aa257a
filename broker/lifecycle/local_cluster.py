"""Several brokers in one process, with one embedded metadata store.

Each broker has its own log directories, sockets, threads and logger. For laptops and tests: the brokers communicate as
between machines, but live and die with one process. Nothing here is global, and no signal is handled. On disk:
`lowtide-metadata.sqlite` and, for each broker, its log directory `broker-<id>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from msgspec.structs import replace

from lowtide.broker.config.broker_config import ConfigError, Setting, load_config
from lowtide.broker.config.http_listeners import HTTP_LISTENERS
from lowtide.broker.lifecycle.broker import Broker
from lowtide.broker.lifecycle.embedded_store import open_embedded
from lowtide.broker.lifecycle.ports import Ports, real_ports
from lowtide.metadata.embedded import METADATA_FILE
from lowtide.metadata.shared import SharedStore
from lowtide.metadata.store import OwnedStore
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.process import open_file_limit, raise_open_file_limit
from lowtide.storage.errors import StorageError

FIRST_BROKER_ID: Final = 1

_OWN_KEYS: Final = ("node.id", "broker.id", "listeners", "advertised.listeners", "log.dir", "log.dirs")
"""Keys that brokers of one process cannot share."""

_BETWEEN: Final = "inter.broker.listener.name"


def listener_name(given: Mapping[str, Setting]) -> str:
    """Returns the name of a broker's only listener, which serves clients and other brokers."""
    return given[_BETWEEN].text if _BETWEEN in given else "PLAINTEXT"


def configurations_of_several(
    given: Mapping[str, Setting],
    directory: str,
    count: int,
    *,
    host: str = "127.0.0.1",
    first_port: int = 0,
    racks: Sequence[str] = (),
) -> list[dict[str, Setting]]:
    """Returns the configurations of `count` brokers: `given`, and for each its own id, folder and port.

    The first listens on `first_port` and the others on the following ports; 0 takes free ones. The only listener has
    the name of the one for brokers. `racks` has the rack of each. Errors: ConfigError, one sentence, for a key that the
    brokers cannot share.
    """
    for name, value in given.items():
        if name in _OWN_KEYS:
            raise ConfigError(
                f"{name}={value.text} is invalid for several brokers of one process: each has its own (in "
                f"{value.source})."
            )
    # If there are fewer brokers than the default factor, there will never be more.
    given = {"offsets.topic.replication.factor": Setting(str(min(count, 3)), "the default"), **given}
    assert not racks or len(racks) == count, f"{count} brokers and {len(racks)} racks"
    listener = listener_name(given)
    configurations = []
    for index in range(count):
        broker_id = FIRST_BROKER_ID + index
        own = {
            "node.id": f"{broker_id}",
            "listeners": f"{listener}://{host}:{first_port + index if first_port else 0}",
            "log.dirs": f"{directory}/broker-{broker_id}",
        }
        if racks:
            own["broker.rack"] = racks[index]
        if HTTP_LISTENERS in given:
            own[HTTP_LISTENERS] = http_listeners_of(given[HTTP_LISTENERS].text, index)
        configurations.append({**given, **{name: Setting(text, f"broker {broker_id}") for name, text in own.items()}})
    return configurations


def http_listeners_of(text: str, index: int) -> str:
    """Returns the HTTP listeners of one of several brokers, at the ports after those of the first."""
    moved = []
    for listener in filter(None, text.split(",")):
        address, _, port = listener.strip().rpartition(":")
        moved.append(f"{address}:{int(port) + index}" if port.isdecimal() and int(port) else listener.strip())
    return ",".join(moved)


class LocalCluster:
    """Brokers by id. Call `start` first and `stop` last. Used from one event loop."""

    def __init__(
        self,
        configurations: Sequence[Mapping[str, Setting]],
        directory: str | None,
        make_logger: Callable[[int], Any],
        *,
        on_failed: Callable[[int], None] = lambda _broker_id: None,
    ) -> None:
        """`directory` gets the shared metadata; None leaves them in the log directory of a single broker.

        `make_logger` gets a broker's id. `on_failed` gets the id of a broker that cannot continue. Errors: ConfigError.
        """
        assert directory is not None or len(configurations) == 1, "several brokers need metadata in common"
        self._given = {load_config(given=given).node_id: dict(given) for given in configurations}
        assert len(self._given) == len(configurations), "each broker needs an id of its own"
        self._directory = directory
        self._store = SharedStore(self._open_store)
        self._make_logger = make_logger
        self._on_failed = on_failed
        self.brokers: dict[int, Broker] = {}
        self._stopping: dict[int, Broker] = {}
        self._addresses: dict[int, str] = {}

    @property
    def addresses(self) -> dict[int, str]:
        """The client addresses by id; they stay after a broker stops."""
        return {broker_id: self._addresses[broker_id] for broker_id in self._given if broker_id in self._addresses}

    @property
    def broker_ids(self) -> list[int]:
        return list(self._given)

    async def start(self) -> None:
        """Starts all brokers in parallel. Errors: those of `Broker.start`; no broker is left running then."""
        outcomes = await asyncio.gather(*map(self.start_broker, self.broker_ids), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                await self.stop()
                raise outcome

    async def start_broker(self, broker_id: int) -> None:
        """Starts a stopped broker at its previous address. Errors: those of `Broker.start`."""
        assert broker_id not in self.brokers, f"broker {broker_id} runs already"
        broker = self.brokers[broker_id] = Broker(
            load_config(given=self._given[broker_id]),
            self._ports(),
            self._make_logger(broker_id),
            on_failed=partial(self._on_failed, broker_id),
        )
        try:
            await broker.start()
        except BaseException:
            del self.brokers[broker_id]
            raise
        self._addresses[broker_id] = broker.address
        bound = [listener._replace(port=broker.ports[listener.name]).text for listener in broker.config.listeners]
        self._given[broker_id]["listeners"] = Setting(",".join(bound), "the first start")

    async def stop_broker(self, broker_id: int) -> None:
        broker = self._stopping[broker_id] = self.brokers.pop(broker_id)
        try:
            await broker.stop()
        finally:
            del self._stopping[broker_id]

    async def kill_broker(self, broker_id: int) -> None:
        """Ends a broker like a killed process."""
        await self.brokers.pop(broker_id).kill()

    async def stop(self) -> None:
        outcomes = await asyncio.gather(*map(self.stop_broker, list(self.brokers)), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    def hurry(self) -> None:
        for broker in self._stopping.values():
            broker.hurry()

    def _ports(self) -> Ports:
        ports = real_ports(asyncio.get_running_loop())
        raise_open_file_limit()
        ports = replace(ports, open_files=open_file_limit() // len(self._given))
        if self._directory is None:
            return ports
        place = f"{self._directory}/{METADATA_FILE}"
        return replace(ports, open_store=lambda _log_directory: self._store.join(), shared_metadata=place)

    async def _open_store(self) -> OwnedStore:
        """Opens the shared store. Errors: StorageError, MetadataFileError, OSError."""
        directory, filesystem = self._directory, OsFileSystem()
        assert directory is not None, "a sole broker opens its own store"
        try:
            filesystem.make_directories(directory)
        except OSError as error:
            raise StorageError(directory, f"the folder cannot be created: {error.strerror or error}") from error
        return await open_embedded(directory, filesystem, SystemClock(), "another process uses this folder")
