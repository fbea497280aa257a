"""`HostedBrokers` on an event loop in a background thread of the test's process."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any, TextIO

from lowtide.testing.brokers import BrokerAddresses, ClusterPlan, HostedBrokers, serve


class ThreadOfBrokers:
    """The thread. A frozen clock, a fork or patches of the test affect these brokers too."""

    def __init__(self, plan: ClusterPlan, log: TextIO) -> None:
        self.brokers = HostedBrokers(plan, log)
        self.loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the brokers."""
        self._requests: asyncio.Queue[tuple[str, tuple[Any, ...]] | None] | None = None
        self._answer: Future[dict[int, BrokerAddresses]] = Future()
        self._thread = threading.Thread(target=self._run, name="lowtide-cluster", daemon=True)

    def start(self, limit_s: float) -> dict[int, BrokerAddresses]:
        """Starts the brokers; returns their addresses. Errors: those of the start, TimeoutError."""
        self._thread.start()
        try:
            return self._answer.result(limit_s)
        except Exception:
            self._thread.join(limit_s)  # It ends after a failed start.
            raise

    def call(self, name: str, arguments: tuple[Any, ...], limit_s: float) -> dict[int, BrokerAddresses]:
        """Calls a method of `HostedBrokers`. Errors: those of the method, TimeoutError."""
        return self._ask((name, arguments), limit_s)

    def stop(self, limit_s: float) -> None:
        """Stops the brokers and ends the thread. Errors: those of a stop, TimeoutError."""
        try:
            if self._thread.is_alive():
                self._ask(None, limit_s)
        finally:
            self._thread.join(limit_s)
        assert not self._thread.is_alive(), "the brokers did not stop"

    def _ask(self, request: tuple[str, tuple[Any, ...]] | None, limit_s: float) -> dict[int, BrokerAddresses]:
        assert self.loop is not None, "the brokers have not started"
        assert self._requests is not None, "the brokers have not started"
        self._answer = Future()
        self.loop.call_soon_threadsafe(self._requests.put_nowait, request)
        return self._answer.result(limit_s)

    def _run(self) -> None:
        from lowtide.runtime.serving_loop import new_serving_loop

        with asyncio.Runner(loop_factory=new_serving_loop) as runner:
            self.loop = runner.get_loop()
            self._requests = asyncio.Queue()
            runner.run(serve(self.brokers, self._requests, self._on_answer))

    def _on_answer(self, outcome: dict[int, BrokerAddresses] | BaseException) -> None:
        if isinstance(outcome, BaseException):
            self._answer.set_exception(outcome)
        else:
            self._answer.set_result(outcome)
