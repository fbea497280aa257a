"""A broker that accepts connections and stays silent (SIGSTOP) delays only requests that need it."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from lowtide.admin.settings import Address, ClientSettings
from lowtide.pipeline.cluster import BlockingCluster
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from lowtide.runtime.random import Random

from .scripted_broker import ScriptedBroker
from .test_connection import framed, versions

DEADLINE_MS = 240_000


def answer(port: int) -> bytes:
    """Metadata with the broker at `port`."""
    brokers = [MetadataResponseBroker(node_id=1, host="127.0.0.1", port=port)]
    return codec_for(MetadataResponse, 1).encode(MetadataResponse(brokers=brokers, topics=[]))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("silent_from", [ApiKey.API_VERSIONS, ApiKey.METADATA])
def test_metadata_comes_from_a_broker_that_answers(seed: int, silent_from: ApiKey):
    """The kernel of a stopped broker accepts connections; the request once took the whole time limit of the call."""
    with ExitStack() as stack:
        # Its backlog accepts, and nothing reads: as if the process were stopped before ApiVersions.
        stopped = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        port = stopped.getsockname()[1]
        if silent_from == ApiKey.METADATA:
            stopped.close()
            silent = stack.enter_context(
                ScriptedBroker(lambda key, version, correlation_id, _: first_only(key, version, correlation_id))
            )
            port = silent.port
        alive: ScriptedBroker = stack.enter_context(
            ScriptedBroker(
                lambda key, version, correlation_id, _: (
                    versions(correlation_id, version, {ApiKey.METADATA: (0, 1)})
                    if key == ApiKey.API_VERSIONS
                    else framed(correlation_id.to_bytes(4, "big"), answer(alive.port))
                )
            )
        )
        addresses = (Address("127.0.0.1", port), Address("127.0.0.1", alive.port))
        cluster = BlockingCluster(ClientSettings(bootstrap_servers=addresses), random=Random(seed))
        stack.callback(cluster.close)
        begun_ms = cluster.clock.monotonic_ms()
        for _ in range(3):
            cluster.find_topics([], cluster.deadline(DEADLINE_MS))
        assert cluster.clock.monotonic_ms() - begun_ms < DEADLINE_MS // 3
        assert cluster.leaders.addresses == {1: Address("127.0.0.1", alive.port)}


def first_only(api_key: int, version: int, correlation_id: int) -> bytes:
    """Answers only the first request of a connection. (No bytes mean an answer that never arrives.)"""
    return versions(correlation_id, version, {ApiKey.METADATA: (0, 1)}) if api_key == ApiKey.API_VERSIONS else b""
