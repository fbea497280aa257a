"""Clients over TLS: mutual TLS, logins inside of it, and certificates that are renewed while clients are connected."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiokafka
import pytest
import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from lowtide import LowtideCluster
from lowtide.admin import BlockingAdminClient
from lowtide.admin.users import ScramUpsertion
from lowtide.protocol.scram import SCRAM_MECHANISMS

from .certificate_files import issue, shown_serial, wait_for_another
from .logging_in import (
    Client,
    clients_of_which_slow,
    confluent,
    kafka_python,
    kcat,
    our_own,
    says_why,
)

USER, PASSWORD = "alice", "pencil"
PLAIN = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
WAIT_S = 30


class World(NamedTuple):
    """A broker with a listener of mutual TLS and one with logins over TLS, and where the files are."""

    cluster: LowtideCluster
    folder: Path
    mutual: int
    requested: int
    logins: int

    def common(self, port: int) -> dict[str, Any]:
        return {"bootstrap.servers": f"127.0.0.1:{port}", "ssl.ca.location": str(self.folder / "ca.pem")}

    @property
    def with_certificate(self) -> dict[str, Any]:
        client = str(self.folder / "client.pem")
        return self.common(self.mutual) | {
            "security.protocol": "SSL",
            "ssl.certificate.location": client,
            "ssl.key.location": client,
        }

    def with_login(self, mechanism: str, password: str = PASSWORD) -> dict[str, Any]:
        login = {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": password}
        return self.common(self.logins) | {"security.protocol": "SASL_SSL"} | login


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, authority: trustme.CA) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tls")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    authority.issue_cert("alice@example.org", common_name="alice").private_key_and_cert_chain_pem.write_to_path(
        str(folder / "client.pem")
    )
    issue(authority, folder)
    config = {
        "listeners": "SSL://127.0.0.1:0,REQUESTED://127.0.0.1:0,LOGINS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "SSL:SSL,REQUESTED:SSL,LOGINS:SASL_SSL,PLAINTEXT:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "listener.name.ssl.ssl.client.auth": "required",
        "listener.name.requested.ssl.client.auth": "requested",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.logins.plain.sasl.jaas.config": PLAIN,
        "lowtide.tls.reload.interval.ms": "100",
    }
    with LowtideCluster(config=config) as cluster:
        ports = cluster.ports(cluster.broker_ids[0])
        world = World(cluster, folder, ports["SSL"], ports["REQUESTED"], ports["LOGINS"])
        with BlockingAdminClient(world.with_certificate) as client:
            for name, mechanism in SCRAM_MECHANISMS.items():
                change = ScramUpsertion(mechanism=mechanism, password=PASSWORD, salt=name.encode())
                assert client.alter_scram_users({USER: change}) == {USER: None}
        yield world


@pytest.mark.parametrize("client", clients_of_which_slow(kafka_python))
def test_mutual_tls(world: World, client: Client) -> None:
    assert client(world.with_certificate) == ""
    bare = {
        key: value
        for key, value in world.with_certificate.items()
        if key not in ("ssl.certificate.location", "ssl.key.location")
    }
    assert "127.0.0.1" in client(bare, refused=True)


def test_a_certificate_of_another_authority_is_not_shown(world: World, tmp_path: Path) -> None:
    """The broker names the authorities that it trusts, and librdkafka shows a certificate of theirs alone, as Java's
    clients do.

    Where a certificate is requested such a client is served without one, and where it is required it is refused
    (librdkafka's test 0097).
    """
    foreign = str(tmp_path / "foreign.pem")
    trustme.CA().issue_cert("mallory@example.org", common_name="mallory").private_key_and_cert_chain_pem.write_to_path(
        foreign
    )
    shown = world.with_certificate | {"ssl.certificate.location": foreign, "ssl.key.location": foreign}
    at_requested = {"bootstrap.servers": f"127.0.0.1:{world.requested}"}
    assert confluent(shown | at_requested) == ""
    assert confluent(world.with_certificate | at_requested) == ""
    assert confluent(shown, refused=True)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("client", clients_of_which_slow(kcat, kafka_python))
def test_logins_over_tls(world: World, client: Client, mechanism: str) -> None:
    assert client(world.with_login(mechanism)) == ""
    assert says_why(client, client(world.with_login(mechanism, "wrong"), refused=True))


@pytest.mark.parametrize("client", clients_of_which_slow(kafka_python))
def test_a_broker_of_another_authority_is_refused_by_the_client(world: World, tmp_path: Path, client: Client) -> None:
    """Nothing of the login is sent to it."""
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    assert (
        "certificate"
        in client(world.with_login("PLAIN") | {"ssl.ca.location": str(tmp_path / "ca.pem")}, refused=True).lower()
    )


async def test_large_records_there_and_back(world: World) -> None:
    """Frames over many records of TLS, and answers larger than a socket takes."""
    context = ssl.create_default_context(cafile=str(world.folder / "ca.pem"))
    settings: dict[str, Any] = {
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": "SCRAM-SHA-512",
    }
    settings |= {
        "bootstrap_servers": f"127.0.0.1:{world.logins}",
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    values = [bytes([number]) * (900_000 if number % 2 else 7) for number in range(40)]
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        for value in values:
            await producer.send_and_wait("large", value)
    async with aiokafka.AIOKafkaConsumer("large", auto_offset_reset="earliest", **settings) as consumer:
        assert [(await asyncio.wait_for(anext(consumer), WAIT_S)).value for _ in values] == values


def test_a_renewed_certificate_is_shown_and_no_connection_is_lost(world: World, authority: trustme.CA) -> None:
    """A broken file changes nothing, and the next good one does."""
    before = shown_serial(world.logins)
    with BlockingAdminClient(world.with_login("PLAIN")) as client:
        client.list_topics()
        issue(authority, world.folder)
        second = wait_for_another(world.logins, before)
        client.list_topics()
        (world.folder / "server.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
        time.sleep(0.5)  # Some rounds of the watch, in which nothing may happen.
        assert shown_serial(world.logins) == second
        client.list_topics()
        issue(authority, world.folder)
        wait_for_another(world.logins, second)
        client.list_topics()


def test_who_speaks_no_tls_is_refused_and_others_are_served(world: World) -> None:
    for junk in (
        b"GET / HTTP/1.0\r\n\r\n",
        b"\x00\x00\x00\x10" + b"\x00" * 16,
        b"\x16\x03\x01\xff\xff" + b"x" * 70_000,
        b"\x16",
    ):
        with socket.create_connection(("127.0.0.1", world.logins), timeout=10) as plain:
            with contextlib.suppress(OSError):  # The broker may have closed the connection at any of these steps.
                plain.sendall(junk)
                plain.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while plain.recv(4096):
                    pass
    assert our_own(world.with_login("PLAIN")) == ""


def test_pkcs12_and_keys_in_the_configuration(tmp_path: Path, authority: trustme.CA) -> None:
    """Both stores from PKCS12 at one listener, and the certificate in the configuration at the other."""
    made = authority.issue_cert("127.0.0.1")
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    key = made.private_key_pem.bytes()
    certificates = load_pem_x509_certificates(chain)
    secret = BestAvailableEncryption(b"geheim")
    private: Any = load_pem_private_key(key, None)
    (tmp_path / "key.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"k", private, certificates[0], certificates[1:], secret)
    )
    trusted = load_pem_x509_certificates(authority.cert_pem.bytes())
    (tmp_path / "trust.p12").write_bytes(pkcs12.serialize_key_and_certificates(None, None, None, trusted, secret))
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("bob@example.org").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "client.pem"))
    config = {
        "listeners": "FIRST://127.0.0.1:0,SECOND://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "FIRST:SSL,SECOND:SSL,PLAINTEXT:PLAINTEXT",
        "listener.name.first.ssl.keystore.type": "PKCS12",
        "listener.name.first.ssl.keystore.location": str(tmp_path / "key.p12"),
        "listener.name.first.ssl.keystore.password": "geheim",
        "listener.name.first.ssl.truststore.type": "PKCS12",
        "listener.name.first.ssl.truststore.location": str(tmp_path / "trust.p12"),
        "listener.name.first.ssl.truststore.password": "geheim",
        "listener.name.first.ssl.client.auth": "required",
        "listener.name.second.ssl.keystore.type": "PEM",
        "listener.name.second.ssl.keystore.certificate.chain": chain.decode(),
        "listener.name.second.ssl.keystore.key": key.decode(),
    }
    with LowtideCluster(config=config) as cluster:
        ports = cluster.ports(cluster.broker_ids[0])
        world = World(cluster, tmp_path, ports["FIRST"], 0, ports["SECOND"])
        assert our_own(world.with_certificate) == ""
        assert our_own(world.common(ports["SECOND"]) | {"security.protocol": "SSL"}) == ""
