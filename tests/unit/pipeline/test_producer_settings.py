"""A producer's settings: the meaning of Kafka's keys, refused values, and the messages."""

from __future__ import annotations

import pickle

import pytest

from lowtide.admin.settings import SettingsError
from lowtide.pipeline.producer_settings import BATCH_BYTES, ProducerSettings
from lowtide.protocol.compression import Compression

SERVERS = {"bootstrap.servers": "one:9092,two:9093"}


def test_defaults_are_those_of_kafkas_producer_where_they_matter():
    settings = ProducerSettings.of(SERVERS)
    assert settings.limits.delivery_timeout_ms == 120_000
    assert settings.client.request_timeout_ms == 30_000
    assert settings.limits.requests_in_flight == 5
    assert settings.compression is Compression.NONE
    assert settings.batch_bytes == BATCH_BYTES
    assert settings.unused_keys == ()


def test_keys_are_used():
    given = {
        "acks": "-1",
        "enable.idempotence": "TRUE",
        "compression.type": "zstd",
        "batch.size": "20000",
        "buffer.memory": "1000000",
        "delivery.timeout.ms": "9000",
        "request.timeout.ms": "4000",
        "client.id": "job",
    }
    settings = ProducerSettings.of(SERVERS | given)
    assert settings.compression is Compression.ZSTD
    assert (settings.batch_bytes, settings.limits.memory_bytes) == (20_000, 1_000_000)
    assert (settings.limits.delivery_timeout_ms, settings.client.request_timeout_ms) == (9000, 4000)
    assert settings.client.client_id == "job"


def test_a_short_delivery_time_shortens_its_requests():
    assert ProducerSettings.of(SERVERS | {"delivery.timeout.ms": "5000"}).client.request_timeout_ms == 5000


def test_settings_are_values():
    """Executors receive them, and use them as the key of their producer."""
    settings = ProducerSettings.of(SERVERS | {"ssl.truststore.location": "ca.pem", "security.protocol": "SSL"})
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert hash(again) == hash(settings)


def test_keys_without_a_meaning_are_kept_for_a_warning():
    assert ProducerSettings.of(SERVERS | {"linger.ms": "5", "fetch.min.bytes": "1"}).unused_keys == (
        "fetch.min.bytes",
        "linger.ms",
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("acks", "0", r"kafka\.acks is '0': this sink always waits"),
        ("enable.idempotence", "false", r"kafka\.enable\.idempotence is 'false': this sink is always idempotent"),
        ("transactional.id", "t", r"kafka\.transactional\.id must not be set"),
        (
            "compression.type",
            "brotli",
            r"kafka\.compression\.type is 'brotli': it must be one of none, gzip, snappy, lz4, zstd",
        ),
        ("buffer.memory", "lots", r"kafka\.buffer\.memory is 'lots': it must be a whole number from 1024"),
        ("max.in.flight.requests.per.connection", "6", "it must be a whole number from 1 to 5"),
        (
            "request.timeout.ms",
            "130000",
            r"kafka\.delivery\.timeout\.ms is 120000: it must be at least kafka\.request\.timeout\.ms, 130000",
        ),
    ],
)
def test_an_impossible_value_is_named(key, value, message):
    with pytest.raises(SettingsError, match=message):
        ProducerSettings.of(SERVERS | {key: value})
