"""Delegation tokens on three brokers: valid and ended on all of them once answered; and `lowtide tokens`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lowtide import LowtideCluster
from lowtide.admin import (
    Acl,
    AclOperation,
    AclPattern,
    AclPermission,
    AclResourceType,
    AuthenticationFailedError,
    BlockingAdminClient,
    BrokerAnsweredError,
    DelegationToken,
    NewTopic,
)

from .command_lines import answer, run

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
SECRET = "the secret of all brokers"
USERS = ("admin", "alice", "bob", "carol")
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[LowtideCluster]:
    """Clients and brokers log in at one listener, by PLAIN or by token."""
    users = " ".join(f'user_{name}="{name}"' for name in USERS)
    config = {
        "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.plaintext.plain.sasl.jaas.config": f'{PLAIN} username="admin" password="admin" {users};',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        "delegation.token.secret.key": SECRET,
        "delegation.token.expiry.check.interval.ms": "1000",
    }
    with LowtideCluster(brokers=3, config=config) as made:
        with as_user(made, "admin") as admin:
            reads = Acl(
                AclResourceType.TOPIC,
                "alices-",
                AclPattern.PREFIXED,
                "User:alice",
                "*",
                AclOperation.DESCRIBE,
                AclPermission.ALLOW,
            )
            tokens = Acl(
                AclResourceType.USER,
                "User:alice",
                AclPattern.LITERAL,
                "User:carol",
                "*",
                AclOperation.CREATE_TOKENS,
                AclPermission.ALLOW,
            )
            assert set(admin.create_acls([reads, tokens]).values()) == {None}
            admin.create_topics([NewTopic(name="alices-1", partitions=1), NewTopic(name="other", partitions=1)])
        yield made


def settings(cluster: LowtideCluster, line: str, mechanism: str, broker_id: int | None = None) -> dict[str, Any]:
    bootstrap = cluster.bootstrap if broker_id is None else cluster.address(broker_id)
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": line,
        "client.id": "t",
    }


def as_user(cluster: LowtideCluster, name: str, broker_id: int | None = None) -> BlockingAdminClient:
    return BlockingAdminClient(settings(cluster, f'{PLAIN} username="{name}" password="{name}";', "PLAIN", broker_id))


def line_of(token: DelegationToken, password: str | None = None) -> str:
    return f'{SCRAM} username="{token.token_id}" password="{password or token.password}" tokenauth="true";'


def by_token(
    cluster: LowtideCluster, token: DelegationToken, mechanism: str = "SCRAM-SHA-256", broker_id: int | None = None
) -> BlockingAdminClient:
    return BlockingAdminClient(settings(cluster, line_of(token), mechanism, broker_id))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_token_is_its_owner_on_every_broker_and_leads_to_no_other_token(
    cluster: LowtideCluster, mechanism: str
) -> None:
    for broker_id in cluster.broker_ids:
        with as_user(cluster, "alice", broker_id) as alice:
            token = alice.create_delegation_token()
        assert (token.owner, token.requester, token.ends_ms - token.issued_ms) == (
            "User:alice",
            "User:alice",
            7 * 24 * HOUR_MS,
        )
        for other in cluster.broker_ids:
            with by_token(cluster, token, mechanism, other) as client:
                assert set(client.list_topics()) == {"alices-1"}
                for asked in (client.create_delegation_token, client.describe_delegation_tokens):
                    with pytest.raises(BrokerAnsweredError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
                        asked()


def refused(cluster: LowtideCluster, line: str) -> bool:
    with BlockingAdminClient(settings(cluster, line, "SCRAM-SHA-256")) as client:
        try:
            client.list_topics()
        except AuthenticationFailedError:
            return True
        return False


def test_a_token_that_was_ended_and_one_that_never_was_log_nobody_in(cluster: LowtideCluster) -> None:
    with as_user(cluster, "alice") as alice:
        token = alice.create_delegation_token(renewers=["User:bob"])
        assert not refused(cluster, line_of(token))
        assert refused(cluster, line_of(token, "other"))
        assert refused(cluster, f'{SCRAM} username="{token.token_id}" password="{token.password}";'), (
            "it is no user of that name"
        )
        with as_user(cluster, "carol") as carol, pytest.raises(BrokerAnsweredError, match="OWNER_MISMATCH"):
            carol.expire_delegation_token(token.hmac)
        with as_user(cluster, "bob") as bob:
            assert token.token_id in {each.token_id for each in bob.describe_delegation_tokens(["User:bob"])}
            assert bob.renew_delegation_token(token.hmac, period_ms=HOUR_MS) < token.expires_ms
            bob.expire_delegation_token(token.hmac)
        assert refused(cluster, line_of(token))
        with pytest.raises(BrokerAnsweredError, match="DELEGATION_TOKEN_NOT_FOUND"):
            alice.renew_delegation_token(token.hmac)


def test_a_token_for_another_user_needs_a_right(cluster: LowtideCluster) -> None:
    with (
        as_user(cluster, "bob") as bob,
        pytest.raises(BrokerAnsweredError, match="DELEGATION_TOKEN_AUTHORIZATION_FAILED"),
    ):
        bob.create_delegation_token(owner="User:alice")
    with as_user(cluster, "carol") as carol:
        token = carol.create_delegation_token(owner="User:alice")
        assert (token.owner, token.requester) == ("User:alice", "User:carol")
        assert [each.token_id for each in carol.describe_delegation_tokens()] == [token.token_id], (
            "only those that concern it"
        )
        with pytest.raises(BrokerAnsweredError, match="OWNER_MISMATCH"):
            carol.renew_delegation_token(token.hmac)
        with pytest.raises(BrokerAnsweredError, match="INVALID_PRINCIPAL_TYPE"):
            carol.create_delegation_token(renewers=["Group:x"])
    with by_token(cluster, token) as client:
        assert set(client.list_topics()) == {"alices-1"}


def test_without_a_login_there_are_no_tokens(lowtide: LowtideCluster) -> None:
    """An anonymous client gets none, whether or not the broker has a secret."""
    with BlockingAdminClient(lowtide.bootstrap) as nobody:
        for asked in (nobody.create_delegation_token, nobody.describe_delegation_tokens):
            with pytest.raises(BrokerAnsweredError, match="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"):
                asked()


def test_brokers_without_a_secret_say_which_key_is_missing(lowtide_secure: LowtideCluster) -> None:
    """The response has no room for a message: the client knows the remedy of the code."""
    with (
        BlockingAdminClient(lowtide_secure.for_confluent_kafka) as admin,
        pytest.raises(
            BrokerAnsweredError, match=r"DELEGATION_TOKEN_AUTH_DISABLED \(set delegation\.token\.secret\.key"
        ),
    ):
        admin.create_delegation_token()


def test_the_command_creates_lists_renews_and_ends_tokens(cluster: LowtideCluster, tmp_path: Path) -> None:
    """The password is printed once, and never listed."""
    file = tmp_path / "bob.properties"
    given = settings(cluster, f'{PLAIN} username="bob" password="bob";', "PLAIN")
    file.write_text("\n".join(f"{key}={value}" for key, value in given.items()))
    config, at = ("--command-config", file), cluster.bootstrap
    created = answer("tokens", "create", "--renewer", "alice", "--lifetime", "2h", *config, bootstrap=at)["token"]
    assert created["ends_ms"] - created["issued_ms"] == 2 * HOUR_MS
    listed = run("tokens", "list", "--output", "json", *config).stdout
    assert created["password"] not in listed
    (row,) = [each for each in json.loads(listed)["tokens"] if each["id"] == created["id"]]
    assert (row["owner"], row["renewers"]) == ("User:bob", ["User:alice"])
    assert (
        answer("tokens", "renew", created["id"], "--for", "1h", *config, bootstrap=at)["expires_ms"]
        < created["expires_ms"]
    )
    assert run("tokens", "expire", created["id"], *config).stdout == f"{created['id']}: removed\n"
    assert "that you may see" in run("tokens", "expire", created["id"], *config, code=1).stderr
    assert "is not a duration" in run("tokens", "create", "--lifetime", "2", *config, code=2).stderr
    text = run("tokens", "create", *config).stdout
    assert [line.split()[0] for line in text.splitlines()] == ["token", "password", "expires"]
    assert text.split()[1] in run("tokens", "list", "--user", "bob", *config).stdout
