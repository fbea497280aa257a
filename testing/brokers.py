"""Runs the brokers of a `LowtideCluster` on one event loop, in a thread or in their own process.

`ClusterPlan` describes the brokers, and can be pickled for another process.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import Setting
    from lowtide.broker.lifecycle.local_cluster import LocalCluster


class ClusterPlan(NamedTuple):
    """The brokers to start. `config` has broker configuration keys; `directory` has their files."""

    broker_count: int
    directory: str
    config: Mapping[str, str | float | bool]
    racks: tuple[str, ...]
    secure: bool


class BrokerAddresses(NamedTuple):
    """The addresses of a broker: its client listener, the port of each listener by name, its HTTP listeners."""

    address: str
    ports: Mapping[str, int]
    http_addresses: tuple[str, ...]


class HostedBrokers:
    """The brokers that a test starts and stops. All methods run on one event loop, and return the addresses."""

    def __init__(self, plan: ClusterPlan, log: TextIO) -> None:
        """`log` gets the lines that the brokers log."""
        self.plan = plan
        self._log = log
        self._cluster: LocalCluster | None = None
        self._addresses: dict[int, BrokerAddresses] = {}

    @property
    def cluster(self) -> LocalCluster:
        """The brokers that were started."""
        assert self._cluster is not None, "the cluster has not started"
        return self._cluster

    async def start(self) -> dict[int, BrokerAddresses]:
        """Starts all brokers. Errors: those of `Broker.start`."""
        self._cluster = await self._new_cluster(_common(self.plan.config))
        await self._cluster.start()
        return self._update_addresses()

    async def stop(self) -> dict[int, BrokerAddresses]:
        """Stops all running brokers gracefully."""
        if self._cluster is not None:
            await self._cluster.stop()
        return self._addresses

    async def restart(self) -> dict[int, BrokerAddresses]:
        """Stops all brokers, and starts them again with the same files and ports."""
        await self.cluster.stop()
        await self.cluster.start()
        return self._update_addresses()

    async def reset(self) -> dict[int, BrokerAddresses]:
        """Stops all brokers, removes their files, and starts them with the same ports and configuration."""
        await self.cluster.stop()
        _remove_files(self.plan.directory)
        if self.plan.secure:
            await self._set_passwords(self._configurations(_common(self.plan.config)))
        await self.cluster.start()
        return self._update_addresses()

    async def stop_broker(self, broker_id: int) -> dict[int, BrokerAddresses]:
        """Stops one broker gracefully."""
        await self.cluster.stop_broker(broker_id)
        return self._addresses

    async def kill_broker(self, broker_id: int) -> dict[int, BrokerAddresses]:
        """Ends one broker abruptly, as far as its process allows."""
        await self.cluster.kill_broker(broker_id)
        return self._addresses

    async def start_broker(self, broker_id: int) -> dict[int, BrokerAddresses]:
        """Starts a broker that was stopped or killed. Errors: those of `Broker.start`."""
        await self.cluster.start_broker(broker_id)
        return self._update_addresses()

    def _update_addresses(self) -> dict[int, BrokerAddresses]:
        """Notes the current addresses and returns them by id. A stopped broker keeps its last ones."""
        for broker_id, broker in self.cluster.brokers.items():
            self._addresses[broker_id] = BrokerAddresses(
                broker.address, dict(broker.ports), tuple(broker.http_addresses)
            )
        self._addresses = dict(sorted(self._addresses.items()))
        return self._addresses

    async def _new_cluster(self, common: dict[str, Setting]) -> LocalCluster:
        """Creates the brokers. A secure cluster has its certificates and passwords in the folder `secure`.

        Errors: ConfigError, StorageError.
        """
        from lowtide.broker.config.log_levels import LEVELS, LOG_LEVEL
        from lowtide.broker.lifecycle.local_cluster import LocalCluster
        from lowtide.broker.lifecycle.logger import make_logger
        from lowtide.broker.lifecycle.secure_cluster import SecureCluster

        if self.plan.secure:
            common = SecureCluster(self.plan.directory).given() | common
        configurations = self._configurations(common)
        if self.plan.secure:
            await self._set_passwords(configurations)
        shared = self.plan.directory if self.plan.broker_count > 1 else None
        level = LEVELS.get(str(self.plan.config.get(LOG_LEVEL)), LEVELS["INFO"])
        return LocalCluster(configurations, shared, lambda node_id: make_logger(node_id, stream=self._log, level=level))

    async def _set_passwords(self, configurations: list[dict[str, Setting]]) -> None:
        from lowtide.broker.config.broker_config import load_config
        from lowtide.broker.lifecycle.secure_cluster import SecureCluster

        place = self.plan.directory if self.plan.broker_count > 1 else load_config(given=configurations[0]).log_dirs[0]
        await SecureCluster(self.plan.directory).set_passwords(place)

    def _configurations(self, given: dict[str, Setting]) -> list[dict[str, Setting]]:
        """Returns the configuration of each broker. Errors: ConfigError."""
        from lowtide.broker.config.broker_config import Setting
        from lowtide.broker.lifecycle.local_cluster import configurations_of_several, listener_name

        plan = self.plan
        if plan.broker_count > 1:
            return configurations_of_several(given, plan.directory, plan.broker_count, racks=plan.racks)
        own = {"listeners": f"{listener_name(given)}://127.0.0.1:0", "log.dirs": plan.directory}
        return [{name: Setting(text, "the default") for name, text in own.items()} | given]


async def serve(
    brokers: HostedBrokers, requests: asyncio.Queue[tuple[str, tuple[Any, ...]] | None], answer: Any
) -> None:
    """Starts the brokers, calls the requested methods one by one until it gets None, and stops the brokers.

    Calls `answer` with the result or the error of the start and of each request.
    """
    try:
        answer(await brokers.start())
    except BaseException as error:  # noqa: BLE001  the caller raises it
        answer(error)
        return
    while (request := await requests.get()) is not None:
        name, arguments = request
        try:
            answer(await getattr(brokers, name)(*arguments))
        except Exception as error:  # noqa: BLE001  the caller raises it
            answer(error)
    try:
        answer(await brokers.stop())
    except Exception as error:  # noqa: BLE001  the caller raises it
        answer(error)


def _remove_files(directory: str) -> None:
    """Removes the contents of the folder, except certificates and passwords."""
    from lowtide.broker.lifecycle.secure_cluster import FOLDER

    for path in Path(directory).iterdir():
        if path.name != FOLDER:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _common(config: Mapping[str, str | float | bool]) -> dict[str, Setting]:
    """Returns the configuration that all brokers share.

    Errors: ConfigError for a value that is not a text, a number, True or False.
    """
    from lowtide.broker.config.broker_config import Setting
    from lowtide.broker.config.key import ConfigError
    from lowtide.runtime.properties import PropertiesError, property_text

    try:
        given = {name: Setting(property_text(name, value), "config") for name, value in config.items()}
    except PropertiesError as error:
        raise ConfigError(str(error)) from None
    given.setdefault("group.initial.rebalance.delay.ms", Setting("0", "the default"))
    return given
