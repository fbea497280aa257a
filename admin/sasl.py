"""SASL as a client speaks it: PLAIN (RFC 4616) and SCRAM-SHA-256 and -512 (RFC 5802, 7677). No sockets: tokens in, tokens out.

A mechanism is a generator that yields the tokens to send and is sent the tokens that come back; it returns when both sides are satisfied.
Neither names nor passwords are normalized (SASLprep), as in Kafka. PLAIN sends the password as it is: without TLS anybody on the way
reads it. SCRAM proves that the broker knows the password too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator
from typing import Final, TypeAlias

from lowtide.admin.errors import AuthenticationFailedError
from lowtide.admin.settings import SaslSettings

Tokens: TypeAlias = Generator[bytes, bytes, None]

ITERATIONS_MIN: Final = 4096
"""RFC 5802 and Kafka's ScramMechanism: fewer would make a stolen exchange cheap to try passwords on."""

ITERATIONS_MAX: Final = 100_000
"""Kafka's brokers allow 16,384. A broker must not be able to keep us computing."""

TOKEN_BYTES_MAX: Final = 64 * 1024

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NO_CHANNEL_BINDING: Final = b"n,,"


def tokens(settings: SaslSettings, nonce: str) -> Tokens:
    """The exchange for the mechanism that the settings name. `nonce` is printable, without commas, and never used twice.

    Errors (also while it runs): AuthenticationFailedError.
    """
    if settings.mechanism == "PLAIN":
        return _plain(settings)
    if settings.mechanism in _HASHES:
        return _scram(settings, nonce, _HASHES[settings.mechanism])
    message = f"the SASL mechanism {settings.mechanism} is not supported yet; PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512 are"
    raise AuthenticationFailedError(message)


def _plain(settings: SaslSettings) -> Tokens:
    if "\0" in settings.username or "\0" in settings.password:
        raise AuthenticationFailedError("PLAIN can't carry a name or a password with a zero character")
    yield f"\0{settings.username}\0{settings.password}".encode()


def _scram(settings: SaslSettings, nonce: str, hash_name: str) -> Tokens:
    name = settings.username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}".encode()
    server_first = yield _NO_CHANNEL_BINDING + first_bare
    attributes = _attributes(server_first)
    combined, salt, iterations = _challenge(attributes, nonce)
    salted = hashlib.pbkdf2_hmac(hash_name, settings.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    without_proof = b"c=" + base64.b64encode(_NO_CHANNEL_BINDING) + b",r=" + combined
    signed = b",".join((first_bare, server_first, without_proof))
    signature = hmac.digest(hashlib.new(hash_name, client_key).digest(), signed, hash_name)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    server_final = yield without_proof + b",p=" + base64.b64encode(proof)
    attributes = _attributes(server_final)
    if b"e" in attributes:
        message = f"the broker refused the proof: {attributes[b'e'].decode(errors='replace')}"
        raise AuthenticationFailedError(message)
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(_base64(attributes.get(b"v", b"")), expected):
        raise AuthenticationFailedError("the broker couldn't prove that it knows the password: it may be somebody else's")


def _attributes(token: bytes) -> dict[bytes, bytes]:
    """`r=...,s=...` as a mapping. Errors: AuthenticationFailedError."""
    if len(token) > TOKEN_BYTES_MAX:
        message = f"the broker sent a SCRAM message of {len(token)} bytes"
        raise AuthenticationFailedError(message)
    found: dict[bytes, bytes] = {}
    for part in token.split(b","):
        key, separator, value = part.partition(b"=")
        if len(key) != 1 or not separator:
            raise AuthenticationFailedError("the broker sent what isn't a SCRAM message")
        found[key] = value
    return found


def _challenge(attributes: dict[bytes, bytes], nonce: str) -> tuple[bytes, bytes, int]:
    """Combined nonce, salt and iterations of the broker's first message. Errors: AuthenticationFailedError."""
    if b"m" in attributes:
        raise AuthenticationFailedError("the broker asks for a SCRAM extension that nobody knows")
    combined, digits = attributes.get(b"r", b""), attributes.get(b"i", b"")
    salt = _base64(attributes.get(b"s", b""))
    if not combined.startswith(nonce.encode()) or len(combined) == len(nonce) or not salt:
        raise AuthenticationFailedError("the broker's SCRAM message doesn't continue ours")
    if not digits.isdigit() or len(digits) > len(str(ITERATIONS_MAX)) or not ITERATIONS_MIN <= int(digits) <= ITERATIONS_MAX:
        message = (
            f"the broker asks for {digits.decode(errors='replace')[:20]} SCRAM iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
        raise AuthenticationFailedError(message)
    return combined, salt, int(digits)


def _base64(text: bytes) -> bytes:
    """Errors: AuthenticationFailedError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailedError("the broker sent what isn't base64 in a SCRAM message") from None
