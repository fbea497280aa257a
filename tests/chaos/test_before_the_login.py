"""Before a login: damaged frames and handshakes end their connections only, secrets stay secret, users survive SIGKILL.

`FRAMES=100000` is a longer run, `SEED=n` takes other damages.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import ssl
import struct
from pathlib import Path
from typing import Any

import trustme

from lowtide.admin import AdminClient
from lowtide.admin.configs import ConfigResource
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.client.sasl import ClientSaslExchange, ClientSaslSettings
from lowtide.protocol.client.versions import exchange_of
from lowtide.protocol.config_values import ConfigResourceType
from lowtide.protocol.headers import request_header
from lowtide.protocol.messages.api_versions import ApiVersionsRequest
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.protocol.schema import ApiMessage
from lowtide.protocol.scram import ScramMechanism
from tests.issuer import Issuer, key_set

from .serving import ServeProcess

FRAMES = int(os.environ.get("FRAMES", "10000"))
SEED = os.environ.get("SEED", "7")
AT_ONCE = 50
MEMORY_LIMIT_BYTES = 64 << 20
MARKER = "geheimnisvoll"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="{MARKER}";'


def frame(message: ApiMessage, version: int) -> bytes:
    exchange = exchange_of(type(message), version)
    body = request_header(exchange.key, version, 7, "c") + exchange.request.encode(message)
    return struct.pack(">i", len(body)) + body


def conversations(token: str) -> list[bytes]:
    """Returns what clients send before they are logged in, without waiting for answers."""
    versions = frame(ApiVersionsRequest(client_software_name="c", client_software_version="1"), 3)
    first = ClientSaslExchange(
        ClientSaslSettings(mechanism="SCRAM-SHA-512", username="alice", password=MARKER), "nonce"
    ).step(None)
    assert first is not None
    password, bearer = b"\0alice\0wrong", f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    tags = b"\xff\xff\xff\xff\x07" + b"\x00\x01x" * 100_000
    flood = struct.pack(">hhih", 18, 3, 7, -1) + tags
    return [
        versions
        + frame(SaslHandshakeRequest(mechanism="PLAIN"), 1)
        + frame(SaslAuthenticateRequest(auth_bytes=password), 2),
        versions
        + frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 1)
        + frame(SaslAuthenticateRequest(auth_bytes=first), 2),
        frame(SaslHandshakeRequest(mechanism="PLAIN"), 0) + struct.pack(">i", len(password)) + password,
        frame(SaslHandshakeRequest(mechanism="SCRAM-SHA-512"), 0) + struct.pack(">i", len(first)) + first,
        versions
        + frame(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 1)
        + frame(SaslAuthenticateRequest(auth_bytes=bearer), 2),
        frame(SaslHandshakeRequest(mechanism="OAUTHBEARER"), 0)
        + struct.pack(">i", len(bearer))
        + bearer
        + struct.pack(">i", 1)
        + b"\x01",
        struct.pack(">i", len(flood)) + flood,
        struct.pack(">i", 524_288) + b"x" * 5_000,
    ]


def damaged(whole: bytes, chance: random.Random) -> bytes:
    """Some bytes are others, or the end is missing."""
    data = bytearray(whole)
    for _ in range(chance.randrange(4)):
        data[chance.randrange(min(len(data), 400))] = chance.randrange(256)
    return bytes(data[: chance.randrange(1, len(data) + 1)]) if chance.random() < 0.2 else bytes(data)


async def send(port: int, data: bytes, tls: ssl.SSLContext | None, *, waits: bool) -> None:
    """Sends it on a separate connection, and may read the answers."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        try:
            writer.write(data)
            if waits:
                writer.write_eof() if tls is None else None
                async with asyncio.timeout(5):
                    await reader.read()
        except TimeoutError:
            pass
        finally:
            writer.transport.abort()


async def storm(plain: int, secure: int, tls: ssl.SSLContext, token: str) -> None:
    chance = random.Random(SEED)
    whole = conversations(token)
    hello = bytes.fromhex("16030100c8010000c40303") + bytes(chance.randrange(256) for _ in range(190))

    async def client(count: int, own: random.Random) -> None:
        for number in range(count):
            data = damaged(own.choice(whole), own)
            if number % 10 == 0:
                await send(secure, data, tls, waits=False)
            elif number % 10 < 3:
                await send(secure, damaged(hello, own), None, waits=number % 10 == 1)
            else:
                await send(plain, data, None, waits=number % 50 == 7)

    await asyncio.gather(*(client(FRAMES // AT_ONCE, random.Random(f"{SEED} {number}")) for number in range(AT_ONCE)))


async def test_damaged_frames_and_handshakes_end_their_connections_only(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    tls = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    issuer, keys = Issuer(), f"file:{tmp_path}/keys.json"
    (tmp_path / "keys.json").write_bytes(key_set(issuer))
    token = issuer.token(aud=None)
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,SASL_SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.allow.unverified.audience": "true",
        "sasl.oauthbearer.allow.unverified.issuer": "true",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "lowtide.sasl.oauthbearer.allowed.urls": keys,
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": PLAIN,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(tmp_path / "server.pem"),
        "ssl.key.password": MARKER,
        "connection.failed.authentication.delay.ms": "20",
    }
    data = tmp_path / "data"
    given = [f"{key}={value}" for key, value in settings.items()]
    async with ServeProcess(data, *given) as broker:
        ready = next(line for line in broker.lines if line["event"] == "ready")
        ports = {text.partition("://")[0]: int(text.rpartition(":")[2]) for text in ready["listeners"]}
        login = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": MARKER}
        honest: dict[str, Any] = {
            "bootstrap.servers": f"127.0.0.1:{ports['SASL_PLAINTEXT']}",
            "security.protocol": "SASL_PLAINTEXT",
        }
        async with AdminClient(honest | login) as admin:
            change = ScramUpsertion(mechanism=ScramMechanism.SHA_512, password=MARKER, salt=b"salt")
            assert await admin.alter_scram_users({"bob": change}) == {"bob": None}
            before = broker.resident_bytes()
            storming = asyncio.create_task(storm(ports["SASL_PLAINTEXT"], ports["SASL_SSL"], tls, token))
            while not storming.done():
                await admin.list_topics(timeout=60)
                await asyncio.wait([storming], timeout=0.5)
            await storming
            await admin.list_topics()
            assert broker.resident_bytes() - before < MEMORY_LIMIT_BYTES
            resource = ConfigResource(ConfigResourceType.BROKER, "0")
            described = (await admin.describe_configs([resource], synonyms=True))[resource]
        assert isinstance(described, dict)
        hidden = [entry for entry in described.values() if entry.is_sensitive]
        assert {"ssl.key.password", "listener.name.sasl_ssl.plain.sasl.jaas.config"} <= {entry.key for entry in hidden}
        assert all(entry.value is None for entry in hidden)
        assert MARKER not in repr(described)
        assert not broker.noise
        assert MARKER not in repr(broker.lines)
        assert not any(part[8:24] in repr(broker.lines) for part in token.split(".")[1:])
        assert any(line["event"] == "login refused" for line in broker.lines)
        await broker.kill()
    for path in data.iterdir():
        assert MARKER.encode() not in path.read_bytes(), path
    async with ServeProcess(data, *given) as broker:
        login = {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "bob", "sasl.password": MARKER}
        async with AdminClient(
            {"bootstrap.servers": f"127.0.0.1:{broker.port}", "security.protocol": "SASL_PLAINTEXT"} | login
        ) as admin:
            assert await admin.describe_scram_users() == {"bob": {ScramMechanism.SHA_512: 4096}}
