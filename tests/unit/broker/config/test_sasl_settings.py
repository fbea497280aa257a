"""SASL settings of listeners: Kafka's keys with their prefixes, and the messages for invalid ones."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import ConfigError, load_config
from lowtide.broker.config.sasl_settings import OwnLogin

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required"
LISTENER = {
    "listeners": "PLAINTEXT://:9092,OUTSIDE://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:SASL_PLAINTEXT",
}
JAAS = "listener.name.outside.plain.sasl.jaas.config"


def test_the_users_of_plain_and_our_own_login() -> None:
    line = f'{PLAIN} username="broker" password="geheim" user_alice="pen\\"cil" user_zoë=\'x y\';'
    secured = load_config(settings=LISTENER | {"sasl.enabled.mechanisms": "PLAIN", JAAS: line}).secured_listeners
    assert list(secured) == ["OUTSIDE"]
    sasl = secured["OUTSIDE"].sasl
    assert sasl is not None
    (plain,) = sasl.mechanisms
    assert plain.users == {"alice": 'pen"cil', "zoë": "x y"}
    assert plain.own == OwnLogin("broker", "geheim")
    assert (sasl.receive_bytes_max, sasl.failure_delay_ms, plain.lifetime_ms) == (524_288, 100, 0)
    assert "geheim" not in repr(sasl)
    assert "cil" not in repr(sasl)


def test_the_strongest_prefix_counts() -> None:
    settings = {
        "listener.name.outside.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl.enabled.mechanisms": "PLAIN",
        "connections.max.reauth.ms": "1000",
        "listener.name.outside.connections.max.reauth.ms": "2000",
        "listener.name.outside.scram-sha-512.connections.max.reauth.ms": "3000",
    }
    sasl = load_config(settings=LISTENER | settings).secured_listeners["OUTSIDE"].sasl
    assert sasl is not None
    assert [(each.name, each.lifetime_ms) for each in sasl.mechanisms] == [
        ("SCRAM-SHA-256", 2000),
        ("SCRAM-SHA-512", 3000),
    ]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {},
            r"sasl.enabled.mechanisms=GSSAPI is invalid at the listener OUTSIDE: Kerberos \(GSSAPI, the default\)",
        ),
        ({"sasl.enabled.mechanisms": "SCRAM-SHA-256,GSSAPI"}, "Kerberos"),
        (
            {"sasl.enabled.mechanisms": "MAGIC"},
            "MAGIC is not a supported mechanism; allowed are PLAIN, .*, OAUTHBEARER",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN"}, f"{JAAS} is missing: it defines the users"),
        ({"sasl.enabled.mechanisms": "PLAIN", "sasl.jaas.config": f"{PLAIN} user_a='geheim';"}, f"use {JAAS}"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", "listener.name.outside.sasl.jaas.config": f"{PLAIN} user_a='geheim';"},
            f"use {JAAS}",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: f"{SCRAM} user_a='geheim';"}, "PlainLoginModule"),
        (
            {"sasl.enabled.mechanisms": "PLAIN", JAAS: "com.evil.JndiLoginModule required user_a='geheim';"},
            "names the login module com.evil",
        ),
        ({"sasl.enabled.mechanisms": "PLAIN", JAAS: "user_a=geheim"}, r"=\[hidden\] is invalid"),
        (
            {
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "listener.name.outside.scram-sha-512.sasl.jaas.config": (
                    f"{SCRAM} username='t' password='geheim' tokenauth='true';"
                ),
            },
            "has tokenauth, but a broker cannot log in",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_without_a_password(settings: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        load_config(settings=LISTENER | settings)
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sasl.enabled.mechanisms", "SCRAM-SHA-512"),
        ("sasl.enabled.mechanisms", "GSSAPI"),
        ("connections.max.reauth.ms", "1000"),
        ("listener.name.outside.plain.sasl.jaas.config", f"{PLAIN} user_a='geheim';"),
    ],
)
def test_a_login_that_no_listener_asks_for_is_refused(name: str, text: str) -> None:
    """It would be open service by mistake."""
    with pytest.raises(ConfigError, match=f"^{name} requires SASL") as caught:
        load_config(settings={name: text})
    assert "geheim" not in str(caught.value)
