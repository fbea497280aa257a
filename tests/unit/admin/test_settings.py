"""Settings of clients.

Kafka's keys have Kafka's meaning, an impossible value is refused with its source, and no secret is shown.
"""

from __future__ import annotations

import pickle

import pytest

from lowtide.admin.settings import Address, ClientSettings, SettingsError, parse_addresses
from lowtide.runtime.filesystem.memory import MemoryFileSystem

SCRAM = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="al\\"ice" password=\'s=;"x\';'


def settings(**given: object) -> ClientSettings:
    return ClientSettings.of(
        {"bootstrap.servers": "broker:9092"} | {key.replace("_", "."): value for key, value in given.items()}
    )


def refusal(**given: object) -> str:
    with pytest.raises(SettingsError) as caught:
        settings(**given)
    return str(caught.value)


def test_bootstrap_servers_in_common_forms():
    assert parse_addresses(" a:1, [::1]:2 ,PLAINTEXT://b ,a:1,c") == (
        Address("a", 1),
        Address("::1", 2),
        Address("b", 9092),
        Address("c", 9092),
    )
    assert str(Address("::1", 2)) == "[::1]:2"


@pytest.mark.parametrize("text", ["", " , ", "a:b", "a:0", "a:65536", "a b:1", "::1:9092", "[a:1", "http://a/b:1"])
def test_bootstrap_servers_that_are_impossible(text: str):
    with pytest.raises(SettingsError, match=r"^here: bootstrap\.servers "):
        parse_addresses(text, "here")


def test_a_cluster_must_be_named():
    with pytest.raises(SettingsError, match=r"bootstrap\.servers is missing"):
        ClientSettings.of({})


def test_defaults_are_those_of_kafkas_clients():
    found = settings()
    assert (found.request_timeout_ms, found.default_api_timeout_ms) == (30_000, 60_000)
    assert (found.retry_backoff_ms, found.retry_backoff_max_ms) == (100, 1000)
    assert found.tls is None
    assert found.sasl is None


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"default_api_timeout_ms": 5000}, (5000, 5000)),
        ({"request_timeout_ms": 90_000}, (90_000, 90_000)),
        ({"request_timeout_ms": 10, "default_api_timeout_ms": 20}, (10, 20)),
    ],
)
def test_a_call_has_at_least_the_time_of_one_request(given: dict[str, object], expected: tuple[int, int]):
    """A user who sets one of the two need not know the other."""
    found = settings(**given)
    assert (found.request_timeout_ms, found.default_api_timeout_ms) == expected


def test_impossible_times_name_key_and_value():
    assert refusal(request_timeout_ms=30, default_api_timeout_ms=20).startswith(
        "the settings: default.api.timeout.ms is '20'"
    )
    for value in ("0", "1.5", "x", "2147483648", "", "٣"):
        assert refusal(request_timeout_ms=value).startswith(f"the settings: request.timeout.ms is {value!r}")


def test_unknown_keys_are_reported_and_not_refused():
    """A file is often shared with producers and consumers."""
    assert settings(group_id="g", acks="all").unused_keys == ("group.id", "acks")


def test_a_line_of_javas_login_is_read():
    found = settings(security_protocol="sasl_ssl", sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=SCRAM)
    assert found.sasl is not None
    assert (found.sasl.mechanism, found.sasl.username, found.sasl.password) == ("SCRAM-SHA-256", 'al"ice', 's=;"x')
    assert found.tls is not None
    assert found.tls.check_host_name


@pytest.mark.parametrize(("text", "by_token"), [("true", True), ("TRUE", True), ("false", False), ("1", False)])
def test_a_login_by_token_is_said_as_to_java(text: str, *, by_token: bool):
    line = f'ScramLoginModule required username="token" password="hmac" tokenauth="{text}";'
    found = settings(security_protocol="SASL_SSL", sasl_mechanism="SCRAM-SHA-512", sasl_jaas_config=line)
    assert found.sasl is not None
    assert (found.sasl.username, found.sasl.by_token) == ("token", by_token)
    plain = line.replace("Scram", "Plain")
    if by_token:
        assert "tokenauth requires SCRAM" in refusal(
            security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=plain
        )


def test_secrets_are_not_shown():
    """Neither in a repr nor in a refusal."""
    found = settings(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="geheim",
        ssl_keystore_key="geheim",
    )
    assert "geheim" not in repr(found)
    for line in (
        "geheim",
        "ScramLoginModule required geheim;",
        "PlainLoginModule required username=u password='geheim;",
    ):
        said = refusal(security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_jaas_config=line)
        assert "geheim" not in said
        assert "sasl.jaas.config" in said


def test_a_password_is_used_unchanged():
    found = settings(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username=" u ",
        sasl_password=" p ",
        ssl_key_password=" k ",
    )
    assert found.sasl is not None
    assert found.tls is not None
    assert (found.sasl.username, found.sasl.password, found.tls.key_password) == ("u", " p ", " k ")


def test_a_login_that_is_missing_or_for_something_else():
    assert "must give username and password" in refusal(security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN")
    assert "its module is" in refusal(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=SCRAM
    )
    assert "allowed are PLAINTEXT, SSL" in refusal(security_protocol="TLS")


def test_tls_accepts_pem_and_reports_other_formats():
    assert "PEM" in refusal(security_protocol="SSL", ssl_truststore_type="JKS")
    assert "PEM" in refusal(security_protocol="SSL", ssl_truststore_location="/a/trust.jks")
    tls = settings(
        security_protocol="SSL",
        ssl_truststore_type="pem",
        ssl_truststore_location="ca.pem",
        ssl_endpoint_identification_algorithm="",
        ssl_enabled_protocols="TLSv1.3,TLSv1.2",
        ssl_cipher_suites="A,B",
    ).tls
    assert tls is not None
    assert (tls.authorities_file, tls.check_host_name, tls.minimum_version, tls.ciphers) == (
        "ca.pem",
        False,
        "TLSv1.2",
        "A:B",
    )


def test_settings_can_be_sent_to_other_processes():
    """Executors of a pipeline receive them."""
    found = settings(
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="u",
        sasl_password="p",
        ssl_ca_location="ca.pem",
    )
    again = pickle.loads(pickle.dumps(found))
    assert again == found
    assert again.sasl.password == "p"


def test_a_file_is_read_and_explicit_settings_override_it():
    files = MemoryFileSystem()
    files.write_bytes("/client.properties", b"bootstrap.servers=a:1\nclient.id=of the file\nretry.backoff.ms=x\n")
    with pytest.raises(SettingsError, match=r"^client\.properties line 3: retry\.backoff\.ms is 'x'"):
        ClientSettings.read("/client.properties", files=files)
    found = ClientSettings.read(
        "/client.properties", {"bootstrap.servers": "b:2", "retry.backoff.ms": 7}, "--set", files
    )
    assert (found.bootstrap_servers, found.client_id, found.retry_backoff_ms) == ((Address("b", 2),), "of the file", 7)


def test_a_file_that_cannot_be_read_is_named():
    files = MemoryFileSystem()
    with pytest.raises(SettingsError, match=r"/nowhere can't be read"):
        ClientSettings.read("/nowhere", files=files)
    files.write_bytes("/f", b"a=\xff")
    with pytest.raises(SettingsError, match=r"f is not UTF-8 text: byte 2 is 0xff"):
        ClientSettings.read("/f", files=files)
    files.write_bytes("/f", b"=x")
    with pytest.raises(SettingsError, match=r"f line 1 has no key"):
        ClientSettings.read("/f", files=files)
