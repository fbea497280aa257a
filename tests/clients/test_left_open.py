"""A client library's forgotten connection fails no other test."""

from __future__ import annotations

import asyncio
import gc
import ssl
import warnings

import trustme
from aiokafka.conn import AIOKafkaProtocol


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
