"""`HostedBrokers` in their own process, which a test's frozen clock, forks and patches do not affect.

The process runs the same Python. It inherits one end of a pair of sockets, and its standard streams. It receives
requests, `(method, arguments)` or None for the stop, and returns results or errors. When the other end closes, it stops
its brokers and ends, so it never outlives the test's process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any, TextIO

from lowtide.testing.brokers import BrokerAddresses, ClusterPlan, HostedBrokers, serve

_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from lowtide.testing.brokers_process import main; main(int(sys.argv[1]))"
)
"""Takes over the import path of the test's process."""


class ProcessOfBrokers:
    """Starts the process that runs a test's brokers, and sends it the test's calls."""

    def __init__(self, plan: ClusterPlan, log: TextIO) -> None:
        self._plan, self._log = plan, log
        self._connection, theirs = Pipe()
        try:
            command = [sys.executable, "-c", _CHILD, str(theirs.fileno()), json.dumps(sys.path)]
            # A session of its own: Ctrl-C at a terminal reaches the test, which stops its brokers in order.
            self._process = subprocess.Popen(  # noqa: S603 - this Python
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def start(self, limit_s: float) -> dict[int, BrokerAddresses]:
        """Starts the brokers; returns their addresses. Errors: those of the start, TimeoutError, ChildProcessError."""
        return self._ask(self._plan, limit_s)

    def call(self, name: str, arguments: tuple[Any, ...], limit_s: float) -> dict[int, BrokerAddresses]:
        """Calls a method of `HostedBrokers`. Errors: those of the method, TimeoutError, ChildProcessError."""
        return self._ask((name, arguments), limit_s)

    def stop(self, limit_s: float) -> None:
        """Stops the brokers and ends the process; kills it after `limit_s`.

        Errors: those of a stop, TimeoutError.
        """
        try:
            if self._process.poll() is None:
                self._ask(None, limit_s)
        except ChildProcessError:  # It has ended already, as after a failed start.
            return
        finally:
            self._connection.close()
            try:
                self._process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise

    def _ask(self, request: object, limit_s: float) -> dict[int, BrokerAddresses]:
        try:
            self._connection.send(request)
            if not self._connection.poll(limit_s):
                raise TimeoutError(f"the brokers' process {self.pid} did not answer within {limit_s:g} s")
            outcome = self._connection.recv()
        except (EOFError, ConnectionError):
            raise ChildProcessError(f"the brokers' process {self.pid} ended with {self._process.wait()}") from None
        if isinstance(outcome, BaseException):
            raise outcome
        assert isinstance(outcome, dict)
        return outcome


def main(descriptor: int) -> None:
    """Runs the child process."""
    from lowtide.runtime.serving_loop import new_serving_loop

    connection = Connection(descriptor)
    brokers = HostedBrokers(connection.recv(), sys.stderr)
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        loop = runner.get_loop()
        requests: asyncio.Queue[tuple[str, tuple[Any, ...]] | None] = asyncio.Queue()

        def read() -> None:
            """Passes requests to the loop. The end of the test's process stops the brokers."""
            request: tuple[str, tuple[Any, ...]] | None = ("", ())
            while request is not None:
                try:
                    request = connection.recv()
                except (EOFError, OSError):
                    request = None
                loop.call_soon_threadsafe(requests.put_nowait, request)

        threading.Thread(target=read, daemon=True).start()
        runner.run(serve(brokers, requests, lambda outcome: _send(connection, outcome)))
    sys.stderr.flush()
    # Threads of libraries may still wait. The brokers are stopped, and their files are closed.
    os._exit(0)


def _send(connection: Connection, outcome: Any) -> None:
    """Sends the result or the error of a method. For an error that can't be pickled, sends its type and text."""
    try:
        pickle.loads(pickle.dumps(outcome))  # noqa: S301 - it was pickled here
    except Exception:  # noqa: BLE001  pickling can raise anything
        outcome = RuntimeError(f"{type(outcome).__name__}: {outcome}")
    with contextlib.suppress(OSError):  # The test's process has ended.
        connection.send(outcome)
