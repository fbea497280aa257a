"""Brokers log in to each other, by mutual TLS or by SASL over TLS, and replicate as without."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Producer

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.config.keys_security import STANDARD_AUTHORIZER
from tests.issuer import Issuer, key_set

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
LINE = f'{PLAIN} username="broker" password="inside" user_broker="inside" user_alice="pencil";'
JAAS = "listener.name.plaintext.plain.sasl.jaas.config"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1", "localhost").private_key_and_cert_chain_pem.write_to_path(
        str(tmp_path / "server.pem")
    )
    return tmp_path


def config(files: Path, protocol: str, **more: str) -> dict[str, str]:
    """Returns settings with one listener name for clients and for the other brokers."""
    stores = {"ssl.keystore.location": str(files / "server.pem"), "ssl.truststore.location": str(files / "ca.pem")}
    types = {"ssl.keystore.type": "PEM", "ssl.truststore.type": "PEM", "min.insync.replicas": "3"}
    return (
        {"listener.security.protocol.map": f"PLAINTEXT:{protocol}", "inter.broker.listener.name": "PLAINTEXT"}
        | stores
        | types
        | more
    )


LOGINS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    JAAS: LINE,
    "connections.max.reauth.ms": "4000",
}


def with_tokens(files: Path) -> dict[str, str]:
    """Brokers, and the client, log in with tokens of one issuer, from files."""
    issuer = Issuer()
    (files / "keys.json").write_bytes(key_set(issuer))
    (files / "broker.token").write_text(issuer.token(sub="broker", aud=None))
    (files / "client.token").write_text(issuer.token(aud=None))
    keys, own = f"file:{files}/keys.json", f"file:{files}/broker.token"
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.mechanism.inter.broker.protocol": "OAUTHBEARER",
        "lowtide.sasl.oauthbearer.allowed.urls": f"{keys},{own}",
        "sasl.oauthbearer.allow.unverified.audience": "true",
        "sasl.oauthbearer.allow.unverified.issuer": "true",
        "sasl.oauthbearer.jwks.endpoint.url": keys,
        "sasl.oauthbearer.token.endpoint.url": own,
        "connections.max.reauth.ms": "4000",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:broker;User:alice",
    }


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("mutual TLS", marks=pytest.mark.slow),
        "SASL over TLS",
        pytest.param("tokens over TLS", marks=pytest.mark.slow),
    ],
)
def test_brokers_log_in_and_replicate(files: Path, way: str) -> None:
    if way == "tokens over TLS":
        settings = config(files, "SASL_SSL", **with_tokens(files))
        text = (files / "client.token").read_text()
        client: dict[str, Any] = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"}
        ours = client | {"sasl.oauthbearer.token.endpoint.url": f"file:{files}/client.token"}
        theirs = client | {"oauth_cb": lambda _: (text, time.time() + 60)}
    elif way == "mutual TLS":
        settings = config(files, "SSL", **{"ssl.client.auth": "required"})
        client = {
            "security.protocol": "SSL",
            "ssl.certificate.location": str(files / "server.pem"),
            "ssl.key.location": str(files / "server.pem"),
        }
    else:
        settings = config(files, "SASL_SSL", **LOGINS)
        client = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "pencil",
        }
    if way != "tokens over TLS":
        ours = theirs = client
    with LowtideCluster(brokers=3, config=settings) as cluster:
        everything = {"bootstrap.servers": cluster.bootstrap, "ssl.ca.location": str(files / "ca.pem")}
        with BlockingAdminClient(everything | ours) as admin:
            admin.create_topics([NewTopic(name="t", partitions=3, replication_factor=3)])
            producer = Producer(everything | theirs | {"acks": "all"})
            for number in range(30):
                producer.produce("t", b"%d" % number, partition=number % 3)
            assert producer.flush(30) == 0
            topic = admin.describe_topics(["t"])["t"]
            assert all(len(each.isr) == 3 for each in topic.partitions.values())


def test_a_login_between_brokers_that_cannot_be_is_refused(files: Path) -> None:
    given = config(files, "SASL_SSL", **LOGINS) | {"listeners": "PLAINTEXT://127.0.0.1:0"}
    load_config(settings=given)
    with pytest.raises(ConfigError, match="sasl.mechanism.inter.broker.protocol=GSSAPI is invalid"):
        load_config(settings=given | {"sasl.mechanism.inter.broker.protocol": "GSSAPI"})
    with pytest.raises(ConfigError, match="must have username and password") as caught:
        load_config(settings=given | {JAAS: f'{PLAIN} user_alice="geheim";'})
    assert "geheim" not in str(caught.value)
