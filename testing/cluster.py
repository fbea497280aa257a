"""Real brokers for tests, without containers.

`LowtideCluster` is a synchronous context manager. Its brokers run in their own process, or with `in_process` in a
thread of the test's. They listen on free loopback ports, and keep their files in a temporary directory unless one is
given. Clients connect over real sockets.

Several brokers replicate to each other, but share a process and the metadata file. So they can't simulate the loss of a
machine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TextIO, cast

from lowtide.testing.brokers import BrokerAddresses, ClusterPlan

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.client_settings import ClusterLogin
    from lowtide.testing.brokers_process import ProcessOfBrokers
    from lowtide.testing.brokers_thread import ThreadOfBrokers

LOG_SHOWN_BYTES: Final = 1 << 20
"""How much of the end of the log is shown."""

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
        in_process: bool = False,
    ) -> None:
        """`config` has broker configuration keys. A given `data_directory` is kept; a temporary one is removed.

        Several brokers have the ids 1, 2, 3 and so on; a single one has `node.id`. `racks` has the rack of each of
        several brokers. With `secure`, clients use TLS and log in by SCRAM-SHA-512, and an authorizer checks them;
        `for_confluent_kafka`, `for_kafka_python` and `for_aiokafka` are then the settings of the administrator. With
        `in_process`, the brokers share the test's process: a debugger steps into them, and a frozen clock or a fork
        affects them too.
        """
        assert brokers > 0, f"brokers={brokers}: it must be at least 1"
        assert not racks or len(racks) == brokers > 1, f"{brokers} brokers and {len(racks)} racks"
        self._given_directory = None if data_directory is None else str(data_directory)
        self._plan = ClusterPlan(brokers, "", dict(config or {}), tuple(racks), secure)
        self._in_process = in_process
        self._host: ThreadOfBrokers | ProcessOfBrokers | None = None
        self._addresses: dict[int, BrokerAddresses] = {}
        self._log: TextIO | None = None
        self._logged = (0, b"")
        """The size and the last bytes of the log after a stop."""

    @property
    def bootstrap(self) -> str:
        """The `bootstrap.servers` for clients: the addresses of all brokers, also of stopped ones."""
        return ",".join(each.address for each in self._addresses.values())

    @property
    def host(self) -> str:
        """The host of the first broker."""
        return next(iter(self._addresses.values())).address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the first broker."""
        return int(next(iter(self._addresses.values())).address.rpartition(":")[2])

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, also of stopped ones."""
        return list(self._addresses)

    def address(self, broker_id: int) -> str:
        """Returns the address of a broker, also of a stopped one."""
        return self._addresses[broker_id].address

    def ports(self, broker_id: int) -> Mapping[str, int]:
        """Returns the port of each listener of a broker, by the listener's name."""
        return self._addresses[broker_id].ports

    def http_addresses(self, broker_id: int) -> tuple[str, ...]:
        """Returns the HTTP addresses of a broker with `http.listeners`, such as `http://127.0.0.1:9644`."""
        return self._addresses[broker_id].http_addresses

    @property
    def data_directory(self) -> str:
        """The directory of the brokers' files, while they run."""
        return self._plan.directory

    def log(self, since: int = 0) -> str:
        """Returns what the brokers logged since the last start, from byte `since` on, at most `LOG_SHOWN_BYTES`."""
        size, last = self._last_logged()
        return last[max(0, since - (size - len(last))) :].decode("utf-8", "replace")

    @property
    def log_size(self) -> int:
        """The size of the log in bytes. Pass it to `log` later to leave out earlier lines."""
        return self._last_logged()[0]

    def _last_logged(self) -> tuple[int, bytes]:
        if self._log is None:
            return self._logged
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - LOG_SHOWN_BYTES)
        return size, os.pread(self._log.fileno(), size - start, start)

    @property
    def for_confluent_kafka(self) -> dict[str, Any]:
        """The settings for confluent-kafka: the addresses, and in a secure cluster the login of the administrator."""
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
    def _login(self) -> ClusterLogin | None:
        """The login of the administrator; None for a cluster without security."""
        if not self._plan.secure or self._host is None:
            return None
        from lowtide.broker.lifecycle.secure_cluster import SecureCluster

        return SecureCluster(self._plan.directory).login(self.bootstrap)

    def start(self) -> None:
        """Starts the brokers, and waits until clients can connect. Errors: those of the start."""
        assert self._host is None, "the cluster runs already"
        directory = self._given_directory or tempfile.mkdtemp(prefix="lowtide-")
        self._plan = self._plan._replace(directory=directory)
        self._log = cast("TextIO", tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115 - `stop` closes it
        try:
            self._host = _new_host(self._plan, self._log, in_process=self._in_process)
            self._addresses = self._host.start(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the brokers gracefully, and waits. A second call does nothing."""
        host, self._host = self._host, None
        try:
            if host is not None:
                host.stop(STOP_TIMEOUT_S)
        finally:
            self._logged = self._last_logged()
            if self._log is not None:
                self._log.close()
                self._log = None
            if self._given_directory is None and self._plan.directory:
                shutil.rmtree(self._plan.directory, ignore_errors=True)

    def restart(self) -> None:
        """Stops the brokers gracefully, and starts them again with the same files and ports."""
        self._call("restart")

    def reset(self) -> None:
        """Removes all topics, groups, users and ACLs: stops the brokers, removes their files, and starts them again.

        Call it between tests that must not see each other's data. Ports stay, connections break. With `secure`,
        certificates and passwords stay. Errors: AssertionError if `data_directory` was given: its files may be needed.
        """
        assert self._given_directory is None, (
            f"{self._given_directory} is kept: reset removes only temporary directories"
        )
        self._call("reset")

    def stop_broker(self, broker_id: int) -> None:
        """Stops one broker gracefully, and waits."""
        self._call("stop_broker", broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """Ends one broker abruptly, as far as its process allows: connections break, and its lease expires."""
        self._call("kill_broker", broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Starts a broker that was stopped or killed, with the same files and port. Errors: those of the start."""
        self._call("start_broker", broker_id)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _call(self, name: str, *arguments: Any) -> None:
        """Calls a method of `HostedBrokers`, and waits. Errors: those of the method."""
        assert self._host is not None, "the cluster does not run"
        self._addresses = self._host.call(name, arguments, START_TIMEOUT_S + STOP_TIMEOUT_S)


def _new_host(plan: ClusterPlan, log: TextIO, *, in_process: bool) -> ThreadOfBrokers | ProcessOfBrokers:
    """Returns the thread or the process that will run the brokers."""
    if in_process:
        from lowtide.testing.brokers_thread import ThreadOfBrokers

        return ThreadOfBrokers(plan, log)
    from lowtide.testing.brokers_process import ProcessOfBrokers

    return ProcessOfBrokers(plan, log)
