"""What a client speaks that doesn't speak Kafka's protocol, or not as its listener does."""

from __future__ import annotations

import struct

import pytest

from lowtide.broker.network.connection.foreign_protocols import instead_of_kafka, instead_of_tls

VERSIONS = bytes.fromhex("0000003600120003")
"""The length, key and version of a client's first request."""


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            bytes.fromhex("16030106"),
            "it speaks TLS, and this listener has none: its clients need security.protocol=PLAINTEXT",
        ),
        (b"GET ", "it speaks HTTP, and this is a listener for Kafka's clients: HTTP is served at http.listeners"),
        (b"PRI ", "it speaks HTTP, and this is a listener for Kafka's clients: HTTP is served at http.listeners"),
        (b"SSH-", "it speaks SSH, and this is a listener for Kafka's clients"),
        (struct.pack(">i", -1), None),
        (struct.pack(">i", 200_000_000), None),
    ],
)
def test_what_comes_where_requests_are_expected(first: bytes, expected: str | None) -> None:
    assert instead_of_kafka(first, "PLAINTEXT") == expected


@pytest.mark.parametrize(
    ("first", "part"),
    [
        (VERSIONS, "it speaks Kafka's protocol without TLS: clients of this listener need security.protocol=SASL_SSL"),
        (b"POST /topi", "it speaks HTTP, and this is a listener for Kafka's clients, with TLS"),
        (VERSIONS[:4], None),
        (b"", None),
        (bytes(8), None),
        (struct.pack(">ihh", 54, -1, 0), None),
        (struct.pack(">ihh", 1 << 30, 18, 3), None),
    ],
)
def test_what_comes_where_a_handshake_is_expected(first: bytes, part: str | None) -> None:
    said = instead_of_tls(first, "SASL_SSL")
    assert said is None if part is None else said is not None and said.startswith(part)
