"""Delegation tokens: Kafka's tool and Java client, and the same questions to Lowtide and Apache Kafka."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.admin import AuthenticationFailedError, BlockingAdminClient, BrokerAnsweredError, DelegationToken

from .secured_kafka import SecuredKafka
from .tools import Tools

pytestmark = pytest.mark.interop

SECRET = "the secret of all brokers"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PATIENCE_S = 20
"""The wait for Kafka, which answers before its brokers apply a change."""


@pytest.fixture(scope="module")
def lowtide_broker() -> Iterator[LowtideCluster]:
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *MECHANISMS)),
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} user_alice="alices" user_bob="bobs";',
        "delegation.token.secret.key": SECRET,
    }
    with LowtideCluster(config=config) as cluster:
        yield cluster


def by_password(bootstrap: str, name: str) -> dict[str, str]:
    """Returns the settings of a client."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{PLAIN} username="{name}" password="{name}s";',
    }


def by_token(bootstrap: str, token_id: str, password: str, mechanism: str) -> dict[str, str]:
    line = f'{SCRAM} username="{token_id}" password="{password}" tokenauth="true";'
    return by_password(bootstrap, "") | {"sasl.mechanism": mechanism, "sasl.jaas.config": line}


def file_of(folder: Path, name: str, settings: dict[str, str]) -> str:
    path = folder / f"{name}.properties"
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return str(path)


@pytest.fixture(scope="module")
def tools(jars: Path, lowtide_broker: LowtideCluster, tmp_path_factory: pytest.TempPathFactory) -> Tools:
    """Against the listener where clients log in; its first call, which only loads classes, uses the other one."""
    port = lowtide_broker.ports(lowtide_broker.broker_ids[0])["PLAINTEXT"]
    made = Tools(jars, f"127.0.0.1:{port}", tmp_path_factory.mktemp("jvm"))
    made.bootstrap = lowtide_broker.bootstrap
    return made


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafkas_tool_and_client(tools: Tools, tmp_path: Path, mechanism: str) -> None:
    """A token is created, described, renewed, logged in with by the Java client, and ended."""
    alice = ("--command-config", file_of(tmp_path, "alice", by_password(tools.bootstrap, "alice")))
    words = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    created = tools.run("kafka-delegation-tokens", *words, *alice).lines[-1].split()
    token_id, hmac, owner, requester, renewers = created[:5]
    assert (owner, requester, renewers) == ("User:alice", "User:alice", "[User:bob]")
    bob = ("--command-config", file_of(tmp_path, "bob", by_password(tools.bootstrap, "bob")))
    described = tools.run("kafka-delegation-tokens", "--describe", "--owner-principal", "User:alice", *bob).out
    assert token_id in described
    renewed = tools.run("kafka-delegation-tokens", "--renew", "--hmac", hmac, "--renew-time-period", "-1", *bob).out
    assert "Completed renew operation" in renewed
    token = ("--command-config", file_of(tmp_path, "token", by_token(tools.bootstrap, token_id, hmac, mechanism)))
    topic = f"by-token-{mechanism.lower()}"
    tools.run("kafka-topics", "--create", "--topic", topic, *token)
    tools.run("kafka-console-producer", "--topic", topic, *token, stdin="one\ntwo\n")
    read = ("--topic", topic, "--from-beginning", "--max-messages", "2")
    assert tools.run("kafka-console-consumer", *read, *token).lines == ["one", "two"]
    refused = tools.call("kafka-delegation-tokens", *words, *token)
    assert refused.exit_code == 1
    assert "DelegationTokenDisabledException" not in refused.err
    assert "Delegation Token requests are not allowed" in refused.err
    ended = tools.run("kafka-delegation-tokens", "--expire", "--hmac", hmac, "--expiry-time-period", "-1", *alice).out
    assert "Completed expire operation" in ended
    late = tools.call("kafka-topics", "--list", *token)
    assert late.exit_code == 1
    assert re.search(r"Authentication failed during authentication due to invalid credentials", late.err + late.out)


def outcome(call: Callable[[], Any]) -> str:
    """Returns the error that a broker answers, empty without one."""
    try:
        call()
    except (BrokerAnsweredError, AuthenticationFailedError) as error:
        return getattr(error, "name", None) or type(error).__name__
    return ""


def eventually(call: Callable[[], Any]) -> Any:
    """Returns the result once the broker has applied a change."""
    until = time.monotonic() + PATIENCE_S
    while not (found := call()):
        assert time.monotonic() < until, "the broker does not act on a change"
        time.sleep(0.05)
    return found


def known(client: BlockingAdminClient, token: DelegationToken) -> bool:
    return token.token_id in {each.token_id for each in client.describe_delegation_tokens()}


def decisions(sasl: str, plain: str) -> list[str]:
    """Returns the errors of one scenario in order, and facts about its tokens."""
    with (
        BlockingAdminClient(by_password(sasl, "alice")) as alice,
        BlockingAdminClient(by_password(sasl, "bob")) as bob,
        BlockingAdminClient(plain) as nobody,
    ):
        token = alice.create_delegation_token()
        eventually(lambda: known(alice, token))
        found = [
            f"{token.owner} {token.requester} {token.ends_ms - token.issued_ms} {token.expires_ms - token.issued_ms}"
        ]
        found.append(f"{len(token.token_id)} {len(token.hmac)}")
        found += [outcome(each) for each in (nobody.create_delegation_token, nobody.describe_delegation_tokens)]
        found.append(outcome(lambda: nobody.renew_delegation_token(token.hmac)))
        found.append(outcome(lambda: nobody.expire_delegation_token(token.hmac)))
        found.append(outcome(lambda: alice.create_delegation_token(renewers=["Group:x"])))
        found.append(outcome(lambda: bob.renew_delegation_token(token.hmac)))
        found.append(outcome(lambda: bob.expire_delegation_token(token.hmac)))
        found.append(outcome(lambda: bob.renew_delegation_token(b"none")))
        found.append(outcome(lambda: bob.expire_delegation_token(b"none")))
        found.append(str(len(alice.describe_delegation_tokens([]))))
        found.append(str(known(bob, token)))
        found += [
            str(len(alice.describe_delegation_tokens([owner]))) for owner in ("User:bob", "User:alice", "User:dave")
        ]
        for mechanism in MECHANISMS:
            with BlockingAdminClient(by_token(sasl, token.token_id, token.password, mechanism)) as client:
                found.append(outcome(client.describe_cluster))
                found += [outcome(each) for each in (client.create_delegation_token, client.describe_delegation_tokens)]
                found.append(outcome(lambda client=client: client.renew_delegation_token(token.hmac)))  # type: ignore[misc]
            for user, password in ((token.token_id, "other"), ("other", token.password), ("alice", "alices")):
                with BlockingAdminClient(by_token(sasl, user, password, mechanism)) as client:
                    found.append(outcome(client.describe_cluster))
        short = alice.create_delegation_token(lifetime_ms=600_000, owner="User:bob", renewers=["User:carol"])
        eventually(lambda: known(bob, short))
        found.append(
            f"{short.owner} {short.requester} {short.renewers} {short.ends_ms - short.issued_ms} "
            f"{short.expires_ms == short.ends_ms}"
        )
        found.append(outcome(lambda: alice.renew_delegation_token(short.hmac)))
        found.append(str(bob.renew_delegation_token(short.hmac, period_ms=10**12) == short.ends_ms))
        found.append(str(bob.expire_delegation_token(short.hmac, period_ms=10**12) == short.ends_ms))
        bob.expire_delegation_token(short.hmac, period_ms=1)
        eventually(
            lambda: outcome(lambda: bob.expire_delegation_token(short.hmac, period_ms=1)) == "DELEGATION_TOKEN_EXPIRED"
        )
        found.append(outcome(lambda: bob.renew_delegation_token(short.hmac)))
        found.append(outcome(lambda: bob.expire_delegation_token(short.hmac)))
        eventually(lambda: not known(bob, short))
        found.append(outcome(lambda: bob.renew_delegation_token(short.hmac)))
        return found


def test_the_same_is_decided_by_kafka(secured: SecuredKafka, lowtide_broker: LowtideCluster) -> None:
    port = lowtide_broker.ports(lowtide_broker.broker_ids[0])["PLAINTEXT"]
    ours = decisions(lowtide_broker.bootstrap, f"127.0.0.1:{port}")
    assert ours == decisions(f"127.0.0.1:{secured.sasl}", secured.node.bootstrap)
