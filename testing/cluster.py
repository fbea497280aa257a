"""Real brokers inside a test's own process: what people start containers for.

`LowtideCluster` is a synchronous context manager. Its brokers run on one event loop in a background thread, listen on free loopback
ports and keep their files in a temporary directory unless one is given. Clients connect to them through real sockets.

One broker is what `lowtide serve` runs. Several replicate to each other as on several machines; what they can't show is a machine's death:
they share a process, and the file with the metadata.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from lowtide.broker.config.broker_config import Given
    from lowtide.broker.lifecycle.client_settings import Login
    from lowtide.broker.lifecycle.local_cluster import LocalCluster
    from lowtide.broker.lifecycle.secure_cluster import SecureCluster

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 120.0


class LowtideCluster:
    """Brokers for tests.

    >>> with LowtideCluster() as cluster:  # doctest: +SKIP
    ...     producer = Producer({"bootstrap.servers": cluster.bootstrap})
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        data_directory: str | Path | None = None,
        config: Mapping[str, str | float | bool] | None = None,
        racks: Sequence[str] = (),
        secure: bool = False,
    ) -> None:
        """`config` are broker configuration keys; `data_directory` is kept, a temporary one is removed.

        Several brokers have the ids 1, 2, 3 and so on; one has what `node.id` says. `racks` has the rack of each of several.
        With `secure` clients use TLS and log in by SCRAM-SHA-512, and an authorizer decides what they may do; `for_confluent_kafka`,
        `for_kafka_python` and `for_aiokafka` are the settings of the administrator.
        """
        assert brokers > 0, f"brokers={brokers}: one is the least"
        assert not racks or len(racks) == brokers > 1, f"{brokers} brokers and {len(racks)} racks"
        self._count = brokers
        self._racks = tuple(racks)
        self._config = dict(config or {})
        self._given_directory = None if data_directory is None else str(data_directory)
        self._directory = ""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._cluster: LocalCluster | None = None
        self._addresses: dict[int, str] = {}
        self._secure = secure
        self._secured_by: SecureCluster | None = None

    @property
    def bootstrap(self) -> str:
        """What clients take as `bootstrap.servers`: the addresses of all brokers, those too that were stopped."""
        return ",".join(self._addresses.values())

    @property
    def host(self) -> str:
        """Where the first broker listens."""
        return next(iter(self._addresses.values())).rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the first broker."""
        return int(next(iter(self._addresses.values())).rpartition(":")[2])

    @property
    def broker_ids(self) -> list[int]:
        """Of all brokers, those too that were stopped."""
        return list(self._addresses)

    def address(self, broker_id: int) -> str:
        """Where one broker listens, or did before it was stopped."""
        return self._addresses[broker_id]

    @property
    def data_directory(self) -> str:
        """Where the brokers keep their files, while they run."""
        return self._directory

    @property
    def for_confluent_kafka(self) -> dict[str, Any]:
        """Settings of confluent-kafka: of the administrator where the cluster is secure, else the addresses alone."""
        login = self._login
        return {"bootstrap.servers": self.bootstrap} if login is None else {**login.librdkafka}

    @property
    def for_kafka_python(self) -> dict[str, Any]:
        """The same for kafka-python: arguments of its classes."""
        login = self._login
        return {"bootstrap_servers": self.bootstrap.split(",")} if login is None else login.kafka_python

    @property
    def for_aiokafka(self) -> dict[str, Any]:
        """The same for aiokafka, with an `ssl_context`."""
        login = self._login
        return {"bootstrap_servers": self.bootstrap.split(",")} if login is None else login.aiokafka

    @property
    def _login(self) -> Login | None:
        """The administrator's; None where every client may do everything."""
        return None if self._secured_by is None else self._secured_by.login(self.bootstrap)

    def start(self) -> None:
        """Start and wait until clients can connect. Errors: whatever kept a broker from starting."""
        assert self._thread is None, "the cluster runs already"
        self._directory = self._given_directory or tempfile.mkdtemp(prefix="lowtide-")
        started: Future[dict[int, str]] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="lowtide-cluster", daemon=True)
        self._thread.start()
        try:
            self._addresses = started.result(START_TIMEOUT_S)
        except BaseException:
            self._thread.join(STOP_TIMEOUT_S)
            self._clean_up()
            raise

    def stop(self) -> None:
        """Stop gracefully and wait for it. May be called twice."""
        if self._thread is None:
            return
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(STOP_TIMEOUT_S)
        assert not self._thread.is_alive(), "the brokers did not stop"
        self._clean_up()

    def restart(self) -> None:
        """Stop gracefully and start again over the same files, on the same ports."""
        self._do(lambda cluster: cluster.stop())
        self._do(lambda cluster: cluster.start())

    def stop_broker(self, broker_id: int) -> None:
        """Stop one broker gracefully, and wait for it."""
        self._do(lambda cluster: cluster.stop_broker(broker_id))

    def kill_broker(self, broker_id: int) -> None:
        """End one broker without a farewell, as far as the process that lives on can do that: its connections break, its lease runs out."""
        self._do(lambda cluster: cluster.kill_broker(broker_id))

    def start_broker(self, broker_id: int) -> None:
        """Start a broker again that was stopped or killed: over the same files, on the same port. Errors: what keeps it from starting."""
        self._do(lambda cluster: cluster.start_broker(broker_id))

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop."""
        self.stop()

    def _clean_up(self) -> None:
        self._thread = self._loop = self._stop = self._cluster = self._secured_by = None
        if self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _do(self, what: Callable[[LocalCluster], Coroutine[Any, Any, None]]) -> None:
        """Have the brokers' thread do something, and wait for it. Errors: what it raises."""
        assert self._loop is not None, "the cluster doesn't run"
        assert self._cluster is not None, "the cluster has not started"
        asyncio.run_coroutine_threadsafe(what(self._cluster), self._loop).result(START_TIMEOUT_S + STOP_TIMEOUT_S)

    def _run(self, started: Future[dict[int, str]]) -> None:
        from lowtide.runtime.serving_loop import new_serving_loop

        with asyncio.Runner(loop_factory=new_serving_loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: Future[dict[int, str]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            cluster = await self._secured() if self._secure else self._make(self._configurations(_common(self._config)))
            self._cluster = cluster
            await cluster.start()
        except BaseException as error:  # noqa: BLE001  the thread that waits gets it
            started.set_exception(error)
            return
        started.set_result(cluster.addresses)
        await self._stop.wait()
        await cluster.stop()

    async def _secured(self) -> LocalCluster:
        """The brokers, with what they need for TLS and logins in the folder `secure`. Errors: ConfigError, StorageError."""
        from lowtide.broker.config.broker_config import load_config
        from lowtide.broker.lifecycle.secure_cluster import SecureCluster

        secure = self._secured_by = SecureCluster(self._directory)
        configurations = self._configurations(secure.given() | _common(self._config))
        await secure.set_passwords(self._directory if self._count > 1 else load_config(given=configurations[0]).log_dirs[0])
        return self._make(configurations)

    def _configurations(self, given: dict[str, Given]) -> list[dict[str, Given]]:
        """Of each broker. Errors: ConfigError."""
        from lowtide.broker.config.broker_config import Given
        from lowtide.broker.lifecycle.local_cluster import configurations_of_several, listener_name

        if self._count > 1:
            return configurations_of_several(given, self._directory, self._count, racks=self._racks)
        own = {"listeners": f"{listener_name(given)}://127.0.0.1:0", "log.dirs": self._directory}
        return [{name: Given(text, "the default") for name, text in own.items()} | given]

    def _make(self, configurations: list[dict[str, Given]]) -> LocalCluster:
        """The brokers, as they are configured. Errors: ConfigError."""
        from lowtide.broker.lifecycle.local_cluster import LocalCluster
        from lowtide.broker.lifecycle.logger import quiet_logger

        return LocalCluster(configurations, self._directory if self._count > 1 else None, lambda _broker_id: quiet_logger())


def _common(config: Mapping[str, str | float | bool]) -> dict[str, Given]:
    """The configuration that all brokers have in common. Errors: ConfigError for a value that isn't a text, a number, True or False."""
    from lowtide.broker.config.broker_config import Given
    from lowtide.broker.config.key import ConfigError
    from lowtide.runtime.properties import PropertiesError, property_text

    try:
        given = {name: Given(property_text(name, value), "config") for name, value in config.items()}
    except PropertiesError as error:
        raise ConfigError(str(error)) from None
    given.setdefault("group.initial.rebalance.delay.ms", Given("0", "the default"))
    return given
