"""Stores of a listener are set while the broker runs, and renewed in their files (KIP-226)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, load_pem_private_key, pkcs12
from cryptography.x509 import load_pem_x509_certificates

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode

from .certificate_files import alter_broker, issue, serial_of, shown_serial, trust

PREFIX = "listener.name.tls."
LOCATION = f"{PREFIX}ssl.keystore.location"
HOUR_MS = "3600000"


class World(NamedTuple):
    """A broker with a listener of TLS beside an open one, an authority, a client of each, and where the files are."""

    folder: Path
    authority: trustme.CA
    port: int
    open: AdminClient
    secure: AdminClient

    def refuses(self, changes: dict[str, str | None], *words: str) -> None:
        """The broker doesn't take these changes, and shows what it showed before."""
        before = shown_serial(self.port)
        with pytest.raises(KafkaException) as caught:
            alter_broker(self.open, changes)
        error = caught.value.args[0]
        assert error.code() == ErrorCode.INVALID_REQUEST
        for word in words:
            assert word in error.str()
        assert "geheim" not in error.str()
        assert shown_serial(self.port) == before
        self.secure.list_topics(timeout=10)


@contextlib.contextmanager
def started(folder: Path, **config: str) -> Iterator[World]:
    authority = trustme.CA()
    trust(folder, authority)
    issue(authority, folder)
    settings = {
        "listeners": "TLS://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        "listener.security.protocol.map": "TLS:SSL,PLAINTEXT:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "server.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "lowtide.tls.reload.interval.ms": HOUR_MS,
    }
    with LowtideCluster(config=settings | config) as cluster:
        ports = cluster.ports(cluster.broker_ids[0])
        quiet: dict[str, Any] = {"error_cb": lambda _error: None, "log_level": 0}
        open_client = AdminClient(quiet | {"bootstrap.servers": f"127.0.0.1:{ports['PLAINTEXT']}"})
        secured = {"security.protocol": "SSL", "ssl.ca.location": str(folder / "ca.pem")}
        secure = AdminClient(quiet | secured | {"bootstrap.servers": f"127.0.0.1:{ports['TLS']}"})
        secure.list_topics(timeout=10)
        yield World(folder, authority, ports["TLS"], open_client, secure)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with started(tmp_path) as world:
        yield world


def test_a_key_store_is_set_and_read_again(world: World) -> None:
    """New connections see it at once, open ones stay, and the same location again reads the file again."""
    folder = world.folder
    issue(world.authority, folder, file="second.pem")
    alter_broker(world.open, {LOCATION: str(folder / "second.pem")})
    assert shown_serial(world.port) == serial_of(folder / "second.pem")
    issue(world.authority, folder, file="second.pem")
    assert shown_serial(world.port) != serial_of(folder / "second.pem")
    alter_broker(world.open, {LOCATION: str(folder / "second.pem")})
    assert shown_serial(world.port) == serial_of(folder / "second.pem")
    alter_broker(world.open, {LOCATION: None})
    assert shown_serial(world.port) == serial_of(folder / "server.pem")
    world.secure.list_topics(timeout=10)


@pytest.mark.slow
def test_a_store_with_a_password_that_nobody_is_shown(world: World) -> None:
    folder, secret = world.folder, BestAvailableEncryption(b"geheim")
    issue(world.authority, folder, file="second.pem")
    content = (folder / "second.pem").read_bytes()
    certificates = load_pem_x509_certificates(content)
    key: Any = load_pem_private_key(content, None)
    (folder / "second.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(b"k", key, certificates[0], certificates[1:], secret)
    )
    store: dict[str, str | None] = {LOCATION: str(folder / "second.p12"), f"{PREFIX}ssl.keystore.type": "PKCS12"}
    world.refuses(store | {f"{PREFIX}ssl.keystore.password": "not it"}, "listener TLS", "its password is wrong")
    alter_broker(world.open, store | {f"{PREFIX}ssl.keystore.password": "geheim"})
    assert shown_serial(world.port) == serial_of(folder / "second.pem")
    resource = ConfigResource(ResourceType.BROKER, "0")
    (described,) = [each.result(10) for each in world.open.describe_configs([resource]).values()]
    assert described[f"{PREFIX}ssl.keystore.password"].value is None
    assert described[f"{PREFIX}ssl.keystore.password"].is_sensitive
    assert described[LOCATION].value == str(folder / "second.p12")
    assert not described[LOCATION].is_read_only


@pytest.mark.slow
def test_what_cannot_be_used_is_refused_and_changes_nothing(world: World) -> None:
    folder = world.folder
    (folder / "broken.pem").write_text("-----BEGIN CERTIFICATE-----\nnonsense\n")
    world.refuses(
        {LOCATION: str(folder / "broken.pem")},
        "the certificates of the listener TLS cannot be used",
        "don't fit together",
    )
    world.refuses({LOCATION: str(folder / "none.pem")}, "none.pem cannot be read: No such file")
    world.refuses(
        {f"{PREFIX}ssl.truststore.location": str(folder / "broken.pem")}, "the trusted certificates can't be read"
    )
    world.refuses({f"{PREFIX}ssl.keystore.type": "JKS"}, "keytool")
    world.refuses({"listener.name.plaintext.ssl.keystore.location": str(folder / "server.pem")}, "PLAINTEXT", "TLS")
    world.refuses({f"{PREFIX}ssl.client.auth": "required"}, "Cannot update these configs dynamically")
    world.refuses({"ssl.keystore.location": str(folder / "server.pem")}, "only per-listener using the listener prefix")
    issue(world.authority, folder, "127.0.0.1", file="fewer.pem")
    world.refuses({LOCATION: str(folder / "fewer.pem")}, "localhost", "ssl.allow.san.changes=true")
    issue(world.authority, folder, file="other.pem", common_name="another")
    world.refuses({LOCATION: str(folder / "other.pem")}, "CN=another", "ssl.allow.dn.changes=true")
    issue(world.authority, folder, "127.0.0.1", "localhost", "broker.example", file="more.pem")
    alter_broker(world.open, {LOCATION: str(folder / "more.pem")})
    assert shown_serial(world.port) == serial_of(folder / "more.pem")


@pytest.mark.slow
def test_another_subject_where_it_is_allowed(tmp_path: Path) -> None:
    with started(tmp_path, **{"ssl.allow.dn.changes": "true", f"{PREFIX}ssl.allow.san.changes": "true"}) as world:
        issue(world.authority, tmp_path, "127.0.0.1", file="other.pem", common_name="another")
        alter_broker(world.open, {LOCATION: str(tmp_path / "other.pem")})
        assert shown_serial(world.port) == serial_of(tmp_path / "other.pem")


def test_brokers_stay_able_to_connect_to_each_other(tmp_path: Path) -> None:
    """Another authority enters the trust store first, then the certificate changes, then the old one leaves."""
    location, trusted = LOCATION, f"{PREFIX}ssl.truststore.location"
    with started(tmp_path, **{"inter.broker.listener.name": "TLS", f"{PREFIX}ssl.client.auth": "requested"}) as world:
        another = trustme.CA()
        issue(another, tmp_path, file="another.pem")
        trust(tmp_path, another, file="another-ca.pem")
        trust(tmp_path, world.authority, another, file="both.pem")
        both: dict[str, str | None] = {
            location: str(tmp_path / "another.pem"),
            trusted: str(tmp_path / "another-ca.pem"),
        }
        world.refuses(both, "brokers could not connect to each other")
        alter_broker(world.open, {trusted: str(tmp_path / "both.pem")})
        alter_broker(world.open, {location: str(tmp_path / "another.pem")})
        alter_broker(world.open, {trusted: str(tmp_path / "another-ca.pem")})
        assert shown_serial(world.port) == serial_of(tmp_path / "another.pem")
