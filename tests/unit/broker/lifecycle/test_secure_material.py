"""The material of a secure cluster: who may read it, what stays, and what is renewed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from lowtide.admin.settings import ClientSettings
from lowtide.broker.config.broker_config import load_config
from lowtide.broker.lifecycle.client_settings import write_client_files
from lowtide.broker.lifecycle.first_users import scram_users, set_passwords
from lowtide.broker.lifecycle.secure_material import (
    CONSOLE_PROPERTIES,
    SHARED,
    Maker,
    broker_settings,
    console_settings,
    properties,
)
from lowtide.metadata.embedded import METADATA_FILE, EmbeddedStore
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.runtime.authority import CERTIFICATE_DAYS, RENEWAL_DAYS
from lowtide.runtime.clock import SystemClock
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.server_tls import ServerMaterial, server_context
from lowtide.storage.errors import StorageError

DAY_MS = 86_400_000


class Shifted(SystemClock):
    """Some days later."""

    __slots__ = ("_days",)

    def __init__(self, days: float = 0) -> None:
        self._days = days

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._days * DAY_MS)


def maker(days: float = 0, seed: int = 7) -> Maker:
    return Maker(OsFileSystem(), Shifted(days), Random(seed))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_secrets_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    material = maker().make(str(tmp_path / "secure"), etcd_hosts=["etcd"])
    write_client_files(maker(), material, "127.0.0.1:9092", str(tmp_path / "secure" / "client"))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*") if path.is_file()}
    public = {name for name, mode in modes.items() if mode != 0o600}
    assert public == {"ca.pem"}
    assert {
        "broker.pem",
        "ca.key",
        "etcd.pem",
        "metadata.pem",
        "admin.password",
        "broker.password",
        "admin.conf",
    } <= set(modes)
    assert not any(password in repr(material) for password in material.passwords.values())


def test_everything_stays_until_a_certificate_is_near_its_end(tmp_path: Path) -> None:
    first = maker().make(str(tmp_path), etcd_hosts=["etcd"])
    before = contents(tmp_path)
    again = maker(CERTIFICATE_DAYS - RENEWAL_DAYS - 1, seed=8).make(str(tmp_path), etcd_hosts=["etcd"])
    assert (again, contents(tmp_path)) == (first, before)
    maker(CERTIFICATE_DAYS - RENEWAL_DAYS + 1, seed=9).make(str(tmp_path), etcd_hosts=["etcd"])
    changed = {name for name, content in contents(tmp_path).items() if content != before[name]}
    assert changed == {"broker.pem", "etcd.pem", "metadata.pem"}


def test_a_renewed_authority_has_its_key_and_vouches_for_what_it_signed(tmp_path: Path) -> None:
    maker().make(str(tmp_path))
    key, old = (tmp_path / "ca.key").read_bytes(), certificate(tmp_path / "ca.pem")
    last = 3650 - CERTIFICATE_DAYS + 1
    maker(last).make(str(tmp_path))
    renewed = certificate(tmp_path / "ca.pem")
    assert (tmp_path / "ca.key").read_bytes() == key
    assert renewed.not_valid_after_utc > old.not_valid_after_utc
    for authority in (old, renewed):
        certificate(tmp_path / "broker.pem").verify_directly_issued_by(authority)


def test_another_host_or_another_authority_gives_another_certificate(tmp_path: Path) -> None:
    """The hosts that it had stay."""
    maker().make(str(tmp_path))
    first = certificate(tmp_path / "broker.pem")
    maker().make(str(tmp_path), ["broker-1", "10.0.0.7"])
    second = certificate(tmp_path / "broker.pem")
    names = second.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "broker-1"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1", "10.0.0.7"]
    (tmp_path / "ca.key").unlink()
    maker().make(str(tmp_path), ["localhost"])
    third = certificate(tmp_path / "broker.pem")
    assert len({first.serial_number, second.serial_number, third.serial_number}) == 3
    third.verify_directly_issued_by(certificate(tmp_path / "ca.pem"))


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    maker().make(str(tmp_path))
    (tmp_path / "broker.password").write_text("\n")
    with pytest.raises(StorageError, match=r"broker\.password.*its first line is empty"):
        maker().make(str(tmp_path))
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(StorageError, match=r"ca\.pem.*remove both"):
        maker().make(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        maker().make(str(tmp_path / "file" / "secure"))


def test_a_broker_and_its_clients_can_use_it(tmp_path: Path) -> None:
    """The settings are a whole configuration, and the client's files name what is there."""
    material = maker().make(str(tmp_path))
    config = load_config(settings=broker_settings(material) | {"listeners": "SASL_SSL://127.0.0.1:0"})
    assert config.inter_broker_login is not None
    assert (config.inter_broker_login[0], config.inter_broker_login[1].username) == ("SCRAM-SHA-512", "broker")
    both = (tmp_path / "broker.pem").read_bytes()
    server_context(
        ServerMaterial(both, authorities=(tmp_path / "ca.pem").read_bytes()),
        client_auth="required",
        protocols=("TLSv1.3",),
    )
    write_client_files(maker(), material, "127.0.0.1:9092", str(tmp_path / "client"), "/elsewhere")
    java, librdkafka = (
        ClientSettings.read(str(tmp_path / "client" / name)) for name in ("admin.properties", "admin.conf")
    )
    assert java == librdkafka
    assert (java.sasl is not None, java.unused_keys) == (True, ())
    python = json.loads((tmp_path / "client" / "admin.json").read_text())
    assert python["kafka-python"]["ssl_cafile"] == python["confluent-kafka"]["ssl.ca.location"] == "/elsewhere/ca.pem"


async def test_first_users_are_set_once_and_again_with_another_password(tmp_path: Path) -> None:
    async def found() -> object:
        store = await EmbeddedStore.open(str(tmp_path / METADATA_FILE), filesystem=OsFileSystem(), clock=SystemClock())
        try:
            return (await scram_users(store, DEFAULT_PREFIX)).users
        finally:
            await store.close()

    await set_passwords(str(tmp_path), {"admin": "one", "broker": "two"}, maker())
    first = await found()
    await set_passwords(str(tmp_path), {"admin": "one", "broker": "two"}, maker(seed=8))
    assert await found() == first
    await set_passwords(str(tmp_path), {"admin": "three"}, maker(seed=9))
    assert await found() != first


def test_a_password_of_ones_own_may_have_any_character(tmp_path: Path) -> None:
    """An existing password is kept. Java's settings quote it, and properties files escape its backslashes."""
    password = 'pen"cil\\, =zoë;'
    (tmp_path / "admin.password").write_text(f"{password}\n")
    material = maker().make(str(tmp_path))
    write_client_files(maker(), material, "127.0.0.1:9092", str(tmp_path / "client"))
    java = ClientSettings.read(str(tmp_path / "client" / "admin.properties"))
    assert java.sasl is not None
    assert java.sasl.password == password
    assert f"\nsasl.password={password}\n" in (tmp_path / "client" / "admin.conf").read_text()
    assert (
        json.loads((tmp_path / "client" / "admin.json").read_text())["kafka-python"]["sasl_plain_password"] == password
    )


def test_the_console_gets_a_certificate_that_opens_no_etcd(tmp_path: Path) -> None:
    """An etcd accepts every client certificate of the authority."""
    material = maker().make(str(tmp_path), console_hosts=["localhost", "console"])
    maker().write(f"{tmp_path}/{CONSOLE_PROPERTIES}", properties(console_settings(material)))
    maker().share(material)
    assert {path.name for path in (tmp_path / "console").iterdir()} == set(SHARED["console"])
    found = certificate(tmp_path / "console" / "console.pem").extensions
    usage = found.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "console"]
    text = (tmp_path / "console" / CONSOLE_PROPERTIES).read_text()
    assert not any(password in text for password in material.passwords.values())


def test_without_a_console_nothing_is_made_for_it(tmp_path: Path) -> None:
    maker().share(maker().make(str(tmp_path)))
    assert not (tmp_path / "console").exists()
    assert not (tmp_path / "console.pem").exists()
