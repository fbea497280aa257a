"""A real broker inside a test's own process: what people start a container for.

`LowtideCluster` is a synchronous context manager. Its brokers run on one event loop in a background thread, listen on free loopback
ports and keep their files in a temporary directory unless one is given. Clients connect to them through real sockets.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class LowtideCluster:
    """Brokers for tests.

    >>> with LowtideCluster() as cluster:  # doctest: +SKIP
    ...     producer = Producer({"bootstrap.servers": cluster.bootstrap})
    """

    def __init__(self, brokers: int = 1, *, data_directory: str | Path | None = None, config: Mapping[str, str] | None = None) -> None:
        """`config` are broker configuration keys; `data_directory` is kept, a temporary one is removed.

        Errors: NotImplementedError for more than one broker: they cannot replicate yet.
        """
        if brokers != 1:
            message = f"brokers={brokers}: one broker is what can run until brokers replicate to each other"
            raise NotImplementedError(message)
        self._config = dict(config or {})
        self._given_directory = None if data_directory is None else str(data_directory)
        self._directory = ""
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.host = "127.0.0.1"
        self.port = 0

    @property
    def bootstrap(self) -> str:
        """What clients take as `bootstrap.servers`."""
        return f"{self.host}:{self.port}"

    @property
    def data_directory(self) -> str:
        """Where the broker keeps its log directory, while it runs."""
        return self._directory

    def start(self) -> None:
        """Start and wait until clients can connect. Errors: whatever kept the broker from starting."""
        assert self._thread is None, "the cluster runs already"
        self._directory = self._given_directory or tempfile.mkdtemp(prefix="lowtide-")
        started: Future[int] = Future()
        self._thread = threading.Thread(target=self._run, args=(started,), name="lowtide-cluster", daemon=True)
        self._thread.start()
        try:
            self.port = started.result(START_TIMEOUT_S)
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
        assert not self._thread.is_alive(), "the broker did not stop"
        self._clean_up()

    def restart(self) -> None:
        """Stop gracefully and start again over the same files, on the same port."""
        assert self._thread is not None, "the cluster doesn't run"
        directory, port = self._directory, self.port
        given, self._given_directory = self._given_directory, directory
        self.stop()
        self._config["listeners"] = f"PLAINTEXT://{self.host}:{port}"
        self.start()
        self._given_directory = given

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop."""
        self.stop()

    def _clean_up(self) -> None:
        self._thread = self._loop = self._stop = None
        if self._given_directory is None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self, started: Future[int]) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(started))

    async def _serve(self, started: Future[int]) -> None:
        from lowtide.broker.config import load_config
        from lowtide.broker.lifecycle import Broker, real_ports
        from lowtide.broker.logs import quiet_logger

        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        settings: dict[str, Any] = {"listeners": f"PLAINTEXT://{self.host}:0", "log.dirs": self._directory, **self._config}
        try:
            config = load_config(settings=settings)
            broker = Broker(config, real_ports(self._loop), quiet_logger())
            await broker.start()
        except BaseException as error:  # noqa: BLE001  the thread that waits gets it
            started.set_exception(error)
            return
        started.set_result(broker.port)
        await self._stop.wait()
        await broker.stop()
