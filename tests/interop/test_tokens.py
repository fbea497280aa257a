"""Tokens of an issuer: Kafka's Java client logs in with them, and Apache Kafka decides as Lowtide does."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.errors import AuthenticationFailedError
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.frames import Frames
from tests.free_ports import free_ports
from tests.issuer import AUDIENCE, ISSUER, Issuer, forgeries, genuine, key_set

from .kafka import TOOL_TIMEOUT_S, Kafka, java
from .tools import MAIN_CLASSES, SHORT_LIVED

pytestmark = pytest.mark.interop

OAUTH = "org.apache.kafka.common.security.oauthbearer."
PREFIX = "listener.name.{}.oauthbearer."
ALLOWED = "org.apache.kafka.sasl.oauthbearer.allowed.urls"


class Broker(NamedTuple):
    """The addresses of its listeners."""

    strict: str
    """Expects an issuer and an audience."""
    lax: str
    """Verifies neither."""


def rules(url: str) -> dict[str, str]:
    """Returns the same for both brokers."""
    found = {"sasl.enabled.mechanisms": "OAUTHBEARER", "connection.failed.authentication.delay.ms": "0"}
    for listener in ("strict", "lax"):
        prefix = PREFIX.format(listener)
        found |= {
            f"{prefix}sasl.oauthbearer.jwks.endpoint.url": url,
            f"{prefix}sasl.server.callback.handler.class": f"{OAUTH}OAuthBearerValidatorCallbackHandler",
            f"{prefix}sasl.jaas.config": f"{OAUTH}OAuthBearerLoginModule required;",
        }
    # Without them a broker (Kafka's since 4.4) does not start on a listener that expects no audience or no issuer.
    prefix = PREFIX.format("lax")
    found |= {f"{prefix}sasl.oauthbearer.allow.unverified.{claim}": "true" for claim in ("audience", "issuer")}
    prefix = PREFIX.format("strict")
    return found | {
        f"{prefix}sasl.oauthbearer.expected.audience": AUDIENCE,
        f"{prefix}sasl.oauthbearer.expected.issuer": ISSUER,
    }


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def keys(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("issuer") / "keys.json"
    file.write_bytes(key_set(issuer))
    return f"file:{file}"


@pytest.fixture(scope="module")
def lowtide(keys: str) -> Iterator[Broker]:
    strict, lax, plain = free_ports(3)
    listeners = {
        "listeners": f"STRICT://127.0.0.1:{strict},LAX://127.0.0.1:{lax},PLAINTEXT://127.0.0.1:{plain}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,STRICT:SASL_PLAINTEXT,LAX:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    }
    with LowtideCluster(config=rules(keys) | listeners | {"lowtide.sasl.oauthbearer.allowed.urls": keys}):
        yield Broker(f"127.0.0.1:{strict}", f"127.0.0.1:{lax}")


@pytest.fixture(scope="module")
def apache(jars: Path, keys: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    plain, controller, strict, lax = free_ports(4)
    folder = tmp_path_factory.mktemp("kafka") / "node"
    node = Kafka(jars, folder, (plain, controller), ("-Xmx512m", f"-D{ALLOWED}={keys}"))
    advertised = f"PLAINTEXT://127.0.0.1:{plain},STRICT://127.0.0.1:{strict},LAX://127.0.0.1:{lax}"
    listeners = {
        "listeners": f"{advertised},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": advertised,
        "listener.security.protocol.map": (
            "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,STRICT:SASL_PLAINTEXT,LAX:SASL_PLAINTEXT"
        ),
    }
    with (folder / "server.properties").open("a") as file:
        file.writelines(f"{name}={value}\n" for name, value in (rules(keys) | listeners).items())
    node.start()
    yield Broker(f"127.0.0.1:{strict}", f"127.0.0.1:{lax}")
    node.stop()


def is_login(address: str, token: str) -> bool:
    with Frames(address) as frames:
        try:
            answer = frames.present(token)
        except ConnectionError:
            return False  # What Kafka does where its check ends with an exception that it doesn't expect.
        if answer.auth_bytes:
            assert answer.auth_bytes == b'{"status":"invalid_token"}'
            answer = frames.ask(SaslAuthenticateRequest(auth_bytes=b"\x01"), 2)
            assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        return answer.error_code == 0


def test_apache_kafka_decides_as_lowtide_does(lowtide: Broker, apache: Broker, issuer: Issuer) -> None:
    for broker in (lowtide, apache):
        assert {what for what, token in forgeries(issuer).items() if is_login(broker.strict, token)} == set()
        assert {what for what, token in genuine(issuer).items() if not is_login(broker.strict, token)} == set()


def test_a_listener_that_verifies_no_audience_takes_any_and_none(
    lowtide: Broker, apache: Broker, issuer: Issuer
) -> None:
    for broker in (lowtide, apache):
        assert is_login(broker.lax, issuer.token())
        assert is_login(broker.lax, issuer.token(aud=None))
        assert is_login(broker.lax, issuer.token(aud=None, iss=None))
        assert not is_login(broker.lax, issuer.token(aud=None, iss=[ISSUER]))
        assert not is_login(broker.lax, forgeries(issuer)["not signed"])


def test_our_client_logs_in_to_apache_kafka(apache: Broker, issuer: Issuer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": f"file:{file}",
    }
    for token, is_served in ((issuer.token(), True), (Issuer(issuer.key_id).token(), False)):
        file.write_text(token)
        with BlockingAdminClient({"bootstrap.servers": apache.strict} | login) as client:
            if is_served:
                client.list_topics()
            else:
                with pytest.raises(AuthenticationFailedError, match="invalid_token"):
                    client.list_topics()


def test_the_java_client_logs_in_with_the_token_of_a_file(
    lowtide: Broker, jars: Path, issuer: Issuer, tmp_path: Path
) -> None:
    file, properties = tmp_path / "token", tmp_path / "client.properties"
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{OAUTH}OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": f"file:{file}",
        "sasl.jaas.config": f'{OAUTH}OAuthBearerLoginModule required extension_traceId="7";',
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    options = (*SHORT_LIVED, f"-D{ALLOWED}=file:{file}")
    words = (MAIN_CLASSES["kafka-topics"], "--bootstrap-server", lowtide.strict, "--command-config", str(properties))
    for token, change, is_served in (
        (issuer.token(), "--create", True),
        (Issuer(issuer.key_id).token(), "--delete", False),
    ):
        file.write_text(token)
        command = java(jars, *words, change, "--topic", "tokens", options=options)
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=False)
        assert (done.returncode == 0) is is_served, done
        assert is_served or "SaslAuthenticationException" in f"{done.stdout}{done.stderr}"
