"""The warning about listeners that every client on the network may use."""

from __future__ import annotations

import pytest

from lowtide.broker.config.broker_config import load_config
from lowtide.broker.config.open_listeners import open_beyond_loopback

TLS = {"ssl.keystore.location": "/k.pem", "ssl.keystore.type": "PEM", "ssl.truststore.location": "/t.pem", "ssl.truststore.type": "PEM"}
SCRAM = {"sasl.enabled.mechanisms": "SCRAM-SHA-512"}


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"listeners": "PLAINTEXT://:9092"}, ["PLAINTEXT://:9092"]),
        ({"listeners": "PLAINTEXT://10.0.0.1:9092"}, ["PLAINTEXT://10.0.0.1:9092"]),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, []),
        ({"listeners": "PLAINTEXT://localhost:9092"}, []),
        ({"listeners": "PLAINTEXT://[::1]:9092"}, []),
        (TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093"}, ["SSL://:9093"]),
        (TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093", "ssl.client.auth": "requested"}, ["SSL://:9093"]),
        (TLS | {"listeners": "PLAINTEXT://127.0.0.1:9092,SSL://:9093", "ssl.client.auth": "required"}, []),
        (TLS | SCRAM | {"listeners": "PLAINTEXT://127.0.0.1:9092,SASL_SSL://:9093"}, []),
    ],
)
def test_what_is_open_beyond_this_machine_is_named(settings: dict[str, str], found: list[str]) -> None:
    assert open_beyond_loopback(load_config(settings=settings)) == found
