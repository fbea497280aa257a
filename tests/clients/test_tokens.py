"""Real clients log in with tokens (OAUTHBEARER): those of the issuer are a login, forged ones are not.

The broker fetches the issuer's keys over HTTPS. kcat makes only unsigned tokens by itself, which are refused; with an
endpoint for tokens librdkafka would fetch signed ones (`sasl.oauthbearer.method=oidc`).
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.blocking_connection import BlockingConnection
from lowtide.admin.errors import AuthenticationFailedError
from lowtide.admin.settings import ClientSettings
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.runtime.clock import SystemClock
from tests.frames import Frames
from tests.https_server import answer, https_server
from tests.issuer import AUDIENCE, ISSUER, LIFETIME_S, Issuer, forgeries, genuine, key_set

TIMEOUT_S = 60
TOKEN_S = 6
"""The lifetime of a token, long enough to be used in time on a busy machine."""
PREFIX = "listener.name.sasl_plaintext.oauthbearer."
CHALLENGE = b'{"status":"invalid_token"}'


class World(NamedTuple):
    """A broker, and the issuer whose tokens it accepts."""

    bootstrap: str
    issuer: Issuer


def config(url: str, **more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "lowtide.sasl.oauthbearer.allowed.urls": url,
        f"{PREFIX}sasl.oauthbearer.jwks.endpoint.url": url,
        f"{PREFIX}sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{PREFIX}sasl.oauthbearer.expected.issuer": ISSUER,
        "connection.failed.authentication.delay.ms": "0",
    } | more


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    issuer = Issuer()
    with https_server(tmp_path_factory.mktemp("tokens"), lambda _request: answer(key_set(issuer))) as server:
        store = f'ssl.truststore.type="PEM" ssl.truststore.location="{server.authorities}"'
        jaas = {
            f"{PREFIX}sasl.jaas.config": (
                f"org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required {store};"
            )
        }
        with LowtideCluster(config=config(server.url, **jaas)) as cluster:
            yield World(cluster.bootstrap, issuer)


def settings(world: World, token: Callable[[], str]) -> dict[str, Any]:
    logger = logging.getLogger("quiet")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    return {
        "bootstrap.servers": world.bootstrap,
        "oauth_cb": lambda _: (token(), time.time() + 3600),
        "logger": logger,
    } | login


def confluent(world: World, token: str) -> bool:
    errors: list[str] = []
    client = AdminClient(settings(world, lambda: token) | {"error_cb": lambda error: errors.append(error.str())})
    client.poll(0)
    try:
        client.list_topics(timeout=2 if token.endswith(".") else TIMEOUT_S)
    except KafkaException:
        client.poll(0)
        assert any("Authentication failed" in error for error in errors), errors
        return False
    return True


KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider
bootstrap, text, patience_ms = sys.argv[1:]
class Provider(AbstractTokenProvider):  # type: ignore[misc]  # its package has no types
    def token(self):
        return text
    def extensions(self):
        return {"traceId": "7"}
settings = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
settings["sasl_oauth_token_provider"] = Provider()
try:
    producer = KafkaProducer(bootstrap_servers=bootstrap, bootstrap_timeout_ms=int(patience_ms), **settings)
except KafkaError:
    sys.exit(3)
producer.send("tokens", b"x").get(timeout=20)
"""


def kafka_python(world: World, token: str) -> bool:
    """Runs in a separate process, because the client leaves sockets open if it can't connect."""
    patience_ms = 2000 if token.endswith(".") else TIMEOUT_S * 1000
    command = [sys.executable, "-c", KAFKA_PYTHON, world.bootstrap, token, str(patience_ms)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode in (0, 3), done.stderr
    return done.returncode == 0


class Provider(AbstractTokenProvider):  # type: ignore[misc]  # its package has no types
    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


def aiokafka_client(world: World, token: str) -> bool:
    """It doesn't look at the challenge, and waits for the metadata that it asks for instead."""

    async def send() -> bool:
        login = {
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "OAUTHBEARER",
            "sasl_oauth_token_provider": Provider(token),
        }
        patience_ms = 2000 if token.endswith(".") else TIMEOUT_S * 1000
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=world.bootstrap, request_timeout_ms=patience_ms, **login)
        try:
            await producer.start()
            await producer.send_and_wait("tokens", b"x")
        except KafkaError:
            return False
        finally:
            await producer.stop()
        return True

    return asyncio.run(send())


@pytest.mark.parametrize("client", [confluent, kafka_python, aiokafka_client])
def test_a_client_logs_in_with_a_token_of_the_issuer_alone(world: World, client: Callable[[World, str], bool]) -> None:
    assert client(world, world.issuer.token())
    assert not client(world, forgeries(world.issuer)["without its signature"])


def test_the_unsigned_tokens_of_kcat_are_refused(world: World) -> None:
    words = (
        "security.protocol=SASL_PLAINTEXT",
        "sasl.mechanisms=OAUTHBEARER",
        "enable.sasl.oauthbearer.unsecure.jwt=true",
        "sasl.oauthbearer.config=principal=alice scope=read",
    )
    command = ["kcat", "-b", world.bootstrap, "-L", "-m", "3", *(part for word in words for part in ("-X", word))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "Authentication failed during authentication due to invalid credentials" in done.stderr


def our_settings(world: World, folder: Path, token: str) -> dict[str, str]:
    """With the token in a file, as in Kafka's FileJwtRetriever."""
    file = folder / "token"
    file.write_text(token)
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    return {"bootstrap.servers": world.bootstrap, "sasl.oauthbearer.token.endpoint.url": f"file:{file}"} | login


def test_our_own_clients_log_in_with_the_token_of_a_file(world: World, tmp_path: Path) -> None:
    settings = our_settings(world, tmp_path, world.issuer.token())
    with BlockingAdminClient(settings) as client:
        client.list_topics()
    deadline_ms = SystemClock().monotonic_ms() + TIMEOUT_S * 1000
    client_settings = ClientSettings.of(settings)
    BlockingConnection.open(client_settings.bootstrap_servers[0], client_settings, deadline_ms).close()
    properties = tmp_path / "client.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [sys.executable, "-m", "lowtide.cli.main", "topics", "list", "--command-config", str(properties)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("what", ["expired", "without its signature"])
def test_our_own_clients_are_refused_with_a_forged_token(world: World, tmp_path: Path, what: str) -> None:
    settings = our_settings(world, tmp_path, forgeries(world.issuer)[what])
    with (
        BlockingAdminClient(settings) as client,
        pytest.raises(AuthenticationFailedError, match="cannot log in with OAUTHBEARER"),
    ):
        client.list_topics()
    client_settings = ClientSettings.of(settings)
    deadline_ms = SystemClock().monotonic_ms() + TIMEOUT_S * 1000
    with pytest.raises(AuthenticationFailedError, match="cannot log in with OAUTHBEARER"):
        BlockingConnection.open(client_settings.bootstrap_servers[0], client_settings, deadline_ms)
    (tmp_path / "token").unlink()
    with (
        BlockingAdminClient(settings) as client,
        pytest.raises(AuthenticationFailedError, match=r"no token to log in with: .* can't be read"),
    ):
        client.list_topics()


def test_our_own_clients_ask_an_endpoint_for_tokens(world: World, tmp_path: Path) -> None:
    """Client credentials, RFC 6749."""
    reply = json.dumps({"access_token": world.issuer.token(), "expires_in": LIFETIME_S}).encode()
    with https_server(tmp_path, lambda _request: answer(reply)) as server:
        settings = our_settings(world, tmp_path, "") | {
            "sasl.oauthbearer.token.endpoint.url": server.url,
            "sasl.oauthbearer.client.credentials.client.id": "me",
            "sasl.oauthbearer.client.credentials.client.secret": "geheim",
            "https.ca.location": str(server.authorities),
        }
        with BlockingAdminClient(settings) as client:
            client.list_topics()
            server.reply = lambda _request: answer(b"", "401 Unauthorized")
        with (
            BlockingAdminClient(settings) as client,
            pytest.raises(AuthenticationFailedError, match="the status 401") as caught,
        ):
            client.list_topics()
        assert "geheim" not in str(caught.value)


def test_librdkafka_gets_its_tokens_from_an_endpoint(world: World, tmp_path: Path) -> None:
    """`sasl.oauthbearer.method=oidc`."""
    given = {"access_token": world.issuer.token(), "token_type": "Bearer", "expires_in": LIFETIME_S}
    with https_server(
        tmp_path, lambda _request: answer(json.dumps(given).encode(), "200 OK", "Content-Type: application/json")
    ) as server:
        login = {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": "geheim",
            "sasl.oauthbearer.token.endpoint.url": server.url,
            "https.ca.location": str(server.authorities),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
        }
        client = AdminClient({"bootstrap.servers": world.bootstrap} | login)
        assert client.list_topics(timeout=TIMEOUT_S).brokers
        with BlockingAdminClient({"bootstrap.servers": world.bootstrap} | login) as ours:
            ours.list_topics()
        assert len(server.requests) == 2


def test_no_forged_token_is_a_login(world: World) -> None:
    """Each is answered by the challenge, and then by SASL_AUTHENTICATION_FAILED."""
    for what, token in forgeries(world.issuer).items():
        with Frames(world.bootstrap) as frames:
            challenge = frames.present(token)
            assert (challenge.error_code, challenge.auth_bytes) == (0, CHALLENGE), what
            assert challenge.session_lifetime_ms == 0
            answered = frames.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
            assert answered.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, what
            assert frames.is_closed()


def test_genuine_tokens_are_logins_until_they_end(world: World) -> None:
    for what, token in genuine(world.issuer).items():
        with Frames(world.bootstrap) as frames:
            answered = frames.present(token)
            assert (answered.error_code, answered.auth_bytes) == (0, b""), what
            assert 0 < answered.session_lifetime_ms <= LIFETIME_S * 1000, what


def test_a_client_goes_on_when_its_tokens_end(world: World) -> None:
    """The login ends with the token; the client shows the next one on the same connection (KIP-368)."""
    shown: list[str] = []

    def token() -> str:
        shown.append(world.issuer.token(exp=int(time.time()) + TOKEN_S))
        return shown[-1]

    failures: list[Any] = []
    client = Producer(settings(world, token) | {"oauth_cb": lambda _: (token(), time.time() + TOKEN_S)})
    due_s = time.monotonic() + 120
    while len(shown) < 3 and time.monotonic() < due_s:
        client.produce("tokens", b"x", on_delivery=lambda error, _: failures.append(error) if error else None)
        client.poll(0.05)
    assert client.flush(TIMEOUT_S) == 0
    assert len(shown) >= 3
    assert failures == []
