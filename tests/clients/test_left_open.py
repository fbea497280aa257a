"""A client library's forgotten connection fails no other test."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiokafka.conn import AIOKafkaProtocol
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaTimeoutError


async def leave_open(port: int, context: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.create_connection(
        lambda: AIOKafkaProtocol(loop.create_future(), reader, loop=loop),
        "127.0.0.1",
        port,
        ssl=context,
        server_hostname="localhost" if context else None,
    )


async def connected(context: ssl.SSLContext | None, trusted: ssl.SSLContext | None) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with server:
        await leave_open(server.sockets[0].getsockname()[1], trusted)


def test_a_connection_of_aiokafka_is_closed_with_its_loop() -> None:
    authority = trustme.CA()
    context, trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("localhost").configure_cert(context)
    authority.configure_trust(trusted)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(connected(None, None))
        asyncio.run(connected(context, trusted))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


def ask_in_vain(port: int, **settings: Any) -> None:
    for kind in (KafkaAdminClient, KafkaProducer):
        with pytest.raises(KafkaTimeoutError):
            kind(bootstrap_servers=f"localhost:{port}", bootstrap_timeout_ms=500, **settings)


def test_what_kafka_python_could_not_connect_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Refused, and refused by the handshake of TLS."""
    caplog.set_level(logging.CRITICAL, logger="kafka")  # Its log records refer to its sockets, and pytest keeps them.
    authority, stranger = trustme.CA(), tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with warnings.catch_warnings(record=True) as caught, socket.create_server(("127.0.0.1", 0)) as server:
        warnings.simplefilter("always")
        port = server.getsockname()[1]
        acceptor = threading.Thread(target=shake_hands_until_closed, args=(server, context))
        acceptor.start()
        ask_in_vain(port, security_protocol="SSL", ssl_cafile=str(stranger))
        server.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        server.close()
        ask_in_vain(port)
        gc.collect()
    assert [str(warning.message) for warning in caught if "socket" in str(warning.message)] == []


def shake_hands_until_closed(server: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(5)  # A client that gives up in the middle keeps its socket open.
            try:
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                continue
