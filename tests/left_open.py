"""Connections that client libraries leave open.

Where a connect is cancelled or refused, over TLS above all, aiokafka waits for no close, and kafka-python closes
nothing; what is left refers to itself through its error. The collection of such a connection would be an error of
whichever test runs at that moment. Those of aiokafka are aborted as their loop closes, those of kafka-python are closed
as they are collected, or as the handshake fails; those of our own code are not.
"""

from __future__ import annotations

import asyncio
import socket
import warnings
from asyncio.selector_events import BaseSelectorEventLoop
from typing import Any

_close = BaseSelectorEventLoop.close


def _is_of_aiokafka(protocol: Any) -> bool:
    """Also inside of TLS."""
    inner = getattr(protocol, "_app_protocol", protocol)
    return type(inner).__module__.startswith("aiokafka.")


def _close_all(self: Any) -> None:
    left = [transport for transport in self._transports.values() if _is_of_aiokafka(transport.get_protocol())]
    for transport in left:
        transport.abort()
    if left and not self.is_running():
        self.run_until_complete(asyncio.sleep(0))  # The abort takes effect in the loop's next pass.
    _close(self)


def abort_those_of_aiokafka() -> None:
    """From now on, for each loop of asyncio."""
    BaseSelectorEventLoop.close = _close_all


class _ClosedWhenCollected(socket.socket):
    """Of kafka-python: its connection until TLS wraps it, and the pair of a client whose constructor failed."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()


def close_those_of_kafka_python() -> None:
    """From now on."""
    with warnings.catch_warnings():
        # It reads its schemas by a function that Python 3.11 calls deprecated: an error here ends the run before its
        # first test.
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka.net.inet import KafkaNetSocket
        from kafka.net.selector import NetworkSelector
        from kafka.net.transport import KafkaSSLTransport

    handshake, begin = KafkaSSLTransport.handshake, NetworkSelector.__init__

    def begin_with_sockets_that_close(selector: Any, /, **settings: Any) -> None:
        begin(selector, **settings)
        for one in (selector._wakeup_r, selector._wakeup_w):
            one.__class__ = _ClosedWhenCollected

    async def handshake_or_close(transport: Any) -> None:
        try:
            await handshake(transport)
        except BaseException:
            transport._sock.close()
            raise

    KafkaNetSocket.socket = lambda _self, *arguments: _ClosedWhenCollected(*arguments)
    KafkaSSLTransport.handshake = handshake_or_close
    NetworkSelector.__init__ = begin_with_sockets_that_close
