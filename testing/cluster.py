"""Real brokers for tests: what people start containers for.

`LowtideCluster` is a synchronous context manager. Its brokers run in a process of their own, or with `in_process` in a
thread of the test's. They listen on free loopback ports and keep their files in a temporary directory unless one is
given. Clients connect to them through real sockets.

One broker is what `lowtide serve` runs. Several replicate to each other as on several machines; what they cannot show
is a machine's death: they share a process, and the file with the metadata.
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
"""Of the log, at most, from its end."""

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
        """`config` are broker configuration keys; `data_directory` is kept, a temporary one is removed.

        Several brokers have the ids 1, 2, 3 and so on; one has what `node.id` says. `racks` has the rack of each of
        several. With `secure` clients use TLS and log in by SCRAM-SHA-512, and an authorizer decides what they may do;
        `for_confluent_kafka`, `for_kafka_python` and `for_aiokafka` are the settings of the administrator. With
        `in_process` the brokers share the test's process: a debugger steps into them, and a frozen clock or a fork
        concerns them too.
        """
        assert brokers > 0, f"brokers={brokers}: one is the least"
        assert not racks or len(racks) == brokers > 1, f"{brokers} brokers and {len(racks)} racks"
        self._given_directory = None if data_directory is None else str(data_directory)
        self._plan = ClusterPlan(brokers, "", dict(config or {}), tuple(racks), secure)
        self._in_process = in_process
        self._host: ThreadOfBrokers | ProcessOfBrokers | None = None
        self._reached: dict[int, BrokerAddresses] = {}
        self._log: TextIO | None = None
        self._logged = (0, b"")
        """Size and last bytes of the log of brokers that were stopped."""

    @property
    def bootstrap(self) -> str:
        """What clients take as `bootstrap.servers`: the addresses of all brokers, those too that were stopped."""
        return ",".join(each.address for each in self._reached.values())

    @property
    def host(self) -> str:
        """Where the first broker listens."""
        return next(iter(self._reached.values())).address.rpartition(":")[0]

    @property
    def port(self) -> int:
        """The port of the first broker."""
        return int(next(iter(self._reached.values())).address.rpartition(":")[2])

    @property
    def broker_ids(self) -> list[int]:
        """Of all brokers, those too that were stopped."""
        return list(self._reached)

    def address(self, broker_id: int) -> str:
        """Where one broker listens, or did before it was stopped."""
        return self._reached[broker_id].address

    def ports(self, broker_id: int) -> Mapping[str, int]:
        """The port of each listener of a broker, by the listener's name."""
        return self._reached[broker_id].ports

    def http_addresses(self, broker_id: int) -> tuple[str, ...]:
        """Where a broker serves HTTP, as `http://127.0.0.1:9644`: for `http.listeners` of its configuration."""
        return self._reached[broker_id].http_addresses

    @property
    def data_directory(self) -> str:
        """Where the brokers keep their files, while they run."""
        return self._plan.directory

    def log(self, since: int = 0) -> str:
        """The lines that the brokers logged since the last start, from byte `since`, at most `LOG_SHOWN_BYTES`."""
        size, last = self._last_logged()
        return last[max(0, since - (size - len(last))) :].decode("utf-8", "replace")

    @property
    def log_size(self) -> int:
        """Bytes of the log so far: what `log` takes as `since` to leave out what was logged before."""
        return self._last_logged()[0]

    def _last_logged(self) -> tuple[int, bytes]:
        if self._log is None:
            return self._logged
        size = os.fstat(self._log.fileno()).st_size
        start = max(0, size - LOG_SHOWN_BYTES)
        return size, os.pread(self._log.fileno(), size - start, start)

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
    def _login(self) -> ClusterLogin | None:
        """The administrator's; None where every client may do everything."""
        if not self._plan.secure or self._host is None:
            return None
        from lowtide.broker.lifecycle.secure_cluster import SecureCluster

        return SecureCluster(self._plan.directory).login(self.bootstrap)

    def start(self) -> None:
        """Start and wait until clients can connect. Errors: whatever kept a broker from starting."""
        assert self._host is None, "the cluster runs already"
        directory = self._given_directory or tempfile.mkdtemp(prefix="lowtide-")
        self._plan = self._plan._replace(directory=directory)
        self._log = cast("TextIO", tempfile.TemporaryFile("w+", encoding="utf-8"))  # noqa: SIM115 - `stop` closes it
        try:
            self._host = _new_host(self._plan, self._log, in_process=self._in_process)
            self._reached = self._host.start(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop gracefully and wait for it. May be called twice."""
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
        """Stop gracefully and start again over the same files, on the same ports."""
        self._call("restart")

    def reset(self) -> None:
        """Stop, remove all files, and start on the same ports: no topic, group, user or rule is left.

        Connections break. Between tests that must not see what others left. With `secure` certificates and passwords
        stay. Errors: AssertionError where
        `data_directory` was given, for what is in it may be of value.
        """
        assert self._given_directory is None, (
            f"{self._given_directory} is kept: reset works on a temporary directory alone"
        )
        self._call("reset")

    def stop_broker(self, broker_id: int) -> None:
        """Stop one broker gracefully, and wait for it."""
        self._call("stop_broker", broker_id)

    def kill_broker(self, broker_id: int) -> None:
        """End one broker abruptly, as far as its process can: its connections break and its lease expires."""
        self._call("kill_broker", broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Start a broker again that was stopped or killed: over the same files, on the same port.

        Errors: what keeps it from starting.
        """
        self._call("start_broker", broker_id)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _call(self, name: str, *arguments: Any) -> None:
        """Have the brokers do something, and wait for it. Errors: what it raises."""
        assert self._host is not None, "the cluster does not run"
        self._reached = self._host.call(name, arguments, START_TIMEOUT_S + STOP_TIMEOUT_S)


def _new_host(plan: ClusterPlan, log: TextIO, *, in_process: bool) -> ThreadOfBrokers | ProcessOfBrokers:
    """Returns the thread or the process that is to run the brokers."""
    if in_process:
        from lowtide.testing.brokers_thread import ThreadOfBrokers

        return ThreadOfBrokers(plan, log)
    from lowtide.testing.brokers_process import ProcessOfBrokers

    return ProcessOfBrokers(plan, log)
