"""Recognizes other protocols than Kafka's by a client's first bytes, so that the log names the mistake.

A wrong port or `security.protocol` is the most common mistake of new users, and "a frame of 369295617 bytes" does not
tell them. Imported when a connection is refused.

Sources: RFC 9110 (methods), RFC 9113 (preface of HTTP/2), RFC 8446 (record header), RFC 4253 (SSH).
"""

from __future__ import annotations

import struct
from typing import Final

_METHODS: Final = (b"GET ", b"HEAD", b"POST", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"PRI ")
_TLS_HANDSHAKE: Final = b"\x16\x03"
_SSH: Final = b"SSH-"
_HEAD: Final = struct.Struct(">ihh")
"""Length, API key, version."""

_API_KEY_MAX: Final = 127
_VERSION_MAX: Final = 31
_PLAIN_REQUEST_BYTES_MAX: Final = 1 << 20
"""The first request of a client is smaller: it asks for versions or metadata, or begins a login."""


def instead_of_kafka(first: bytes, security_protocol: str) -> str | None:
    """Returns which protocol the first bytes of a Kafka listener are, and what to do; None if unknown.

    `security_protocol` is what clients of the listener have to set.
    """
    if first.startswith(_TLS_HANDSHAKE):
        return f"it speaks TLS, and this listener has none: its clients need security.protocol={security_protocol}"
    if first[:4] in _METHODS:
        return "it speaks HTTP, and this is a listener for Kafka's clients: HTTP is served at http.listeners"
    if first.startswith(_SSH):
        return "it speaks SSH, and this is a listener for Kafka's clients"
    return None


def instead_of_tls(first: bytes, security_protocol: str) -> str | None:
    """Returns which protocol the first bytes of a TLS listener are, and what to do; None if unknown."""
    if first[:4] in _METHODS:
        return "it speaks HTTP, and this is a listener for Kafka's clients, with TLS: HTTP is served at http.listeners"
    if len(first) < _HEAD.size:
        return None
    size, key, version = _HEAD.unpack_from(first)
    if _HEAD.size <= size <= _PLAIN_REQUEST_BYTES_MAX and 0 <= key <= _API_KEY_MAX and 0 <= version <= _VERSION_MAX:
        needed = f"clients of this listener need security.protocol={security_protocol}"
        return f"it speaks Kafka's protocol without TLS: {needed}"
    return None
