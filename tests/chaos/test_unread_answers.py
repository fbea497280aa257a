"""Many clients that request much and never read: the broker's memory is bounded, and a client that reads is served."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from contextlib import ExitStack
from typing import Any

import pytest

from lowtide.broker.network.connection.connection_host import ConnectionHost
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from lowtide.protocol.messages.metadata import MetadataRequest
from lowtide.testing.cluster import LowtideCluster
from tests.inside import broker_of, loop_of

from .large_frames import framed

LIMIT, PARTITIONS, SILENT = 2 << 20, 1_000, 200
LIMIT_S = 120.0
"""The limit for any answer. It is long because the machine may be busy."""

ON_CONNECTED = ConnectionHost.on_connected
METADATA = framed(ApiKey.METADATA, 9, codec_for(MetadataRequest, 9).encode(MetadataRequest(topics=None)))


def connect(cluster: LowtideCluster) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(LIMIT_S)
    client.connect((cluster.host, cluster.port))
    return client


def ask(client: socket.socket, frame: bytes) -> int:
    """Returns the size of the answer, which is read."""
    client.sendall(frame)
    left = size = struct.unpack(">i", client.recv(4, socket.MSG_WAITALL))[0]
    while left:
        received = client.recv(min(left, 1 << 16))
        assert received, "the connection was closed"
        left -= len(received)
    return size


def with_a_small_buffer(self: ConnectionHost, connection: Any) -> str | None:
    """Otherwise the system's buffers accept megabytes of a local connection."""
    with socket.socket(fileno=os.dup(connection._transport.get_extra_info("socket").fileno())) as accepted:
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return ON_CONNECTED(self, connection)


def test_clients_that_never_read_hold_no_more_than_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConnectionHost, "on_connected", with_a_small_buffer)
    config = {"lowtide.answers.unread.max.bytes": str(LIMIT)}
    with LowtideCluster(config=config, in_process=True) as cluster, ExitStack() as stack:
        honest = stack.enter_context(connect(cluster))
        topic = CreatableTopic(name="wide", num_partitions=PARTITIONS, replication_factor=1, assignments=[], configs=[])
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=False)
        ask(honest, framed(ApiKey.CREATE_TOPICS, 5, codec_for(CreateTopicsRequest, 5).encode(request)))
        host, loop = broker_of(cluster).serving.host, loop_of(cluster)
        assert host is not None
        most = 0

        async def used_bytes() -> int:
            """Between two callbacks of the loop: within one there may be more, until room is made."""
            return host.answers.used_bytes

        for _ in range(SILENT):
            stack.enter_context(connect(cluster)).sendall(METADATA * 4)
            assert ask(honest, METADATA) > 20 * PARTITIONS
            most = max(most, asyncio.run_coroutine_threadsafe(used_bytes(), loop).result(LIMIT_S))
        assert LIMIT / 2 < most <= LIMIT
        assert len(host.connections) < SILENT, "some were closed"
