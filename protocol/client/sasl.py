"""The client side of SASL: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, 7677), OAUTHBEARER (RFC 7628).

Tokens in, tokens out.

    PLAIN_BEGINS ── start ──> PASSWORD_SENT ── any answer ──> DONE
    OAUTH_BEGINS ── start ──> BEARER_SENT ── an empty answer ──> DONE
    BEARER_SENT ── a challenge with the reason ──> BEARER_REFUSED ── anything ──> SaslError
    SCRAM_BEGINS ── start ──> FIRST_SENT ── a challenge with our nonce ──> PROOF_SENT ── the broker's proof ──> DONE
    FIRST_SENT, PROOF_SENT ── anything else ──> SaslError

Names and passwords are not normalized (SASLprep), as in Kafka. PLAIN sends the password and OAUTHBEARER the token in
clear text, which only TLS protects. SCRAM also proves that the broker has the password.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, TypeAlias

from lowtide.protocol.scram import ITERATIONS_MIN, SCRAM_MECHANISMS, credential_of, salted_password, server_signature

ITERATIONS_MAX: Final = 100_000
"""Kafka's brokers allow 16,384. The limit protects the client's CPU."""

TOKEN_BYTES_MAX: Final = 64 * 1024

BEARER: Final = re.compile(r"[-_.A-Za-z0-9]{1,65000}", re.ASCII)
"""A JSON Web Token, as Kafka accepts it. The limit fits into `TOKEN_BYTES_MAX`."""

_NO_CHANNEL_BINDING: Final = b"n,,"
_TOKEN_EXTENSION: Final = ",tokenauth=true"  # noqa: S105 - a flag

Attributes: TypeAlias = Mapping[bytes, bytes]


class SaslError(Exception):
    """The exchange failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSaslSettings:
    """The client's credentials. `repr` hides password and token."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """The issuer's token for OAUTHBEARER. It expires: each login uses a current one."""
    by_token: bool = False
    """Whether name and password are the id and HMAC (as base64) of a delegation token (KIP-48). SCRAM only."""


class SaslState(Enum):
    """The state of an exchange."""

    PLAIN_BEGINS = "nothing is sent yet; the mechanism is PLAIN"
    SCRAM_BEGINS = "nothing is sent yet; the mechanism is SCRAM"
    OAUTH_BEGINS = "nothing is sent yet; the mechanism is OAUTHBEARER"
    PASSWORD_SENT = "PLAIN: name and password are sent"  # noqa: S105
    FIRST_SENT = "SCRAM: name and nonce are sent, the broker's challenge comes next"
    PROOF_SENT = "SCRAM: our proof is sent, the broker's own comes next"
    BEARER_SENT = "OAUTHBEARER: the issuer's token is sent"
    BEARER_REFUSED = "OAUTHBEARER: the token is not accepted, and the broker ends the exchange next"
    DONE = "both sides are satisfied"


class SaslEvent(Enum):
    """The kind of a broker's token."""

    START = "no token: the exchange begins"
    EMPTY = "nothing in it"
    UNREADABLE = "not a list of attributes as SCRAM has them, or too long"
    EXTENSION = "has the attribute m, an extension that must be understood"
    ERROR = "has the attribute e"
    ATTRIBUTES = "any other list of attributes"


_BEGINS: Final = {
    "PLAIN": SaslState.PLAIN_BEGINS,
    "SCRAM-SHA-256": SaslState.SCRAM_BEGINS,
    "SCRAM-SHA-512": SaslState.SCRAM_BEGINS,
    "OAUTHBEARER": SaslState.OAUTH_BEGINS,
}
_ANSWERS: Final = (SaslEvent.EMPTY, SaslEvent.UNREADABLE, SaslEvent.EXTENSION, SaslEvent.ERROR, SaslEvent.ATTRIBUTES)


class ClientSaslExchange:
    """One exchange. `nonce` is printable, without commas, and unique."""

    def __init__(self, settings: ClientSaslSettings, nonce: str) -> None:
        """Errors: SaslError for an unsupported mechanism."""
        if settings.mechanism not in _BEGINS:
            raise SaslError(f"the SASL mechanism {settings.mechanism} is not supported; {', '.join(_BEGINS)} are")
        self.state = _BEGINS[settings.mechanism]
        self._settings = settings
        self._nonce = nonce
        self._first_bare = b""
        self._expected = b""
        """The expected proof of a broker that has the password."""

    def step(self, received: bytes | None) -> bytes | None:
        """Returns the token to send after `received` (None at the start), or None when done. Errors: SaslError."""
        event, attributes = (SaslEvent.START, {}) if received is None else _classified(received)
        handle = self.TABLE[self.state].get(event)
        assert handle is not None, f"{event} at {self.state}"
        return handle(self, received or b"", attributes)

    # ------------------------------------------------------------------ handlers of the table
    def _send_password(self, _received: bytes, _attributes: Attributes) -> bytes:
        username, password = self._settings.username, self._settings.password
        if "\0" in username or "\0" in password:
            raise SaslError("PLAIN does not allow a zero character in name or password")
        self.state = SaslState.PASSWORD_SENT
        return f"\0{username}\0{password}".encode()

    def _send_bearer(self, _received: bytes, _attributes: Attributes) -> bytes:
        if BEARER.fullmatch(self._settings.token) is None:
            raise SaslError("the token for OAUTHBEARER is not a JSON Web Token")
        self.state = SaslState.BEARER_SENT
        return f"n,,\x01auth=Bearer {self._settings.token}\x01\x01".encode()

    def _acknowledge(self, _received: bytes, _attributes: Attributes) -> bytes:
        self.state = SaslState.BEARER_REFUSED
        return b"\x01"

    def _refuse_answer(self, _received: bytes, _attributes: Attributes) -> None:
        raise SaslError("the broker refused the token but did not end the login")

    def _finish(self, _received: bytes, _attributes: Attributes) -> None:
        self.state = SaslState.DONE

    def _send_first(self, _received: bytes, _attributes: Attributes) -> bytes:
        name = self._settings.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}{_TOKEN_EXTENSION if self._settings.by_token else ''}".encode()
        self.state = SaslState.FIRST_SENT
        return _NO_CHANNEL_BINDING + self._first_bare

    def _send_proof(self, received: bytes, attributes: Attributes) -> bytes:
        combined, salt, iterations = _challenge(attributes, self._nonce)
        mechanism = SCRAM_MECHANISMS[self._settings.mechanism]
        salted = salted_password(mechanism, self._settings.password, salt, iterations)
        credential = credential_of(mechanism, salted, salt, iterations)
        without_proof = b"c=" + base64.b64encode(_NO_CHANNEL_BINDING) + b",r=" + combined
        signed = b",".join((self._first_bare, received, without_proof))
        client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
        signature = hmac.digest(credential.stored_key, signed, mechanism.hash_name)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._expected = server_signature(mechanism, credential, signed)
        self.state = SaslState.PROOF_SENT
        return without_proof + b",p=" + base64.b64encode(proof)

    def _check_proof(self, received: bytes, attributes: Attributes) -> None:
        if b"e" in attributes:
            self._refuse_error(received, attributes)
        if not hmac.compare_digest(_base64(attributes.get(b"v", b"")), self._expected):
            raise SaslError("the broker did not prove that it knows the password: it may be an impostor")
        self.state = SaslState.DONE

    def _refuse_error(self, _received: bytes, attributes: Attributes) -> None:
        raise SaslError(f"the broker refused the proof: {attributes[b'e'].decode(errors='replace')}")

    def _refuse_extension(self, _received: bytes, _attributes: Attributes) -> None:
        raise SaslError("the broker requires an unknown SCRAM extension")

    def _refuse_unreadable(self, received: bytes, _attributes: Attributes) -> None:
        if len(received) > TOKEN_BYTES_MAX:
            raise SaslError(f"the broker sent a SCRAM message of {len(received)} bytes")
        raise SaslError("the broker sent an invalid SCRAM message")

    TABLE: ClassVar[
        Mapping[SaslState, Mapping[SaslEvent, Callable[[ClientSaslExchange, bytes, Attributes], bytes | None]]]
    ] = {
        SaslState.PLAIN_BEGINS: {SaslEvent.START: _send_password},
        SaslState.SCRAM_BEGINS: {SaslEvent.START: _send_first},
        SaslState.OAUTH_BEGINS: {SaslEvent.START: _send_bearer},
        SaslState.PASSWORD_SENT: dict.fromkeys(_ANSWERS, _finish),
        SaslState.BEARER_SENT: dict.fromkeys(_ANSWERS, _acknowledge) | {SaslEvent.EMPTY: _finish},
        SaslState.BEARER_REFUSED: dict.fromkeys(_ANSWERS, _refuse_answer),
        SaslState.FIRST_SENT: {
            SaslEvent.EMPTY: _refuse_unreadable,
            SaslEvent.UNREADABLE: _refuse_unreadable,
            SaslEvent.EXTENSION: _refuse_extension,
            SaslEvent.ERROR: _send_proof,  # which refuses a challenge without nonce, salt and iterations
            SaslEvent.ATTRIBUTES: _send_proof,
        },
        SaslState.PROOF_SENT: {
            SaslEvent.EMPTY: _refuse_unreadable,
            SaslEvent.UNREADABLE: _refuse_unreadable,
            SaslEvent.EXTENSION: _check_proof,
            SaslEvent.ERROR: _refuse_error,
            SaslEvent.ATTRIBUTES: _check_proof,
        },
        SaslState.DONE: {},
    }
    """The handler of each token. A missing pair is a bug of the caller, and raises."""


def _classified(token: bytes) -> tuple[SaslEvent, Attributes]:
    """Classifies a token, and parses `r=...,s=...` into a mapping."""
    if not token:
        return SaslEvent.EMPTY, {}
    if len(token) > TOKEN_BYTES_MAX:
        return SaslEvent.UNREADABLE, {}
    found: dict[bytes, bytes] = {}
    for part in token.split(b","):
        key, separator, value = part.partition(b"=")
        if len(key) != 1 or not separator:
            return SaslEvent.UNREADABLE, {}
        found[key] = value
    return SaslEvent.EXTENSION if b"m" in found else SaslEvent.ERROR if b"e" in found else SaslEvent.ATTRIBUTES, found


def _challenge(attributes: Attributes, nonce: str) -> tuple[bytes, bytes, int]:
    """Parses the combined nonce, salt and iterations of the broker's first message. Errors: SaslError."""
    combined, digits = attributes.get(b"r", b""), attributes.get(b"i", b"")
    salt = _base64(attributes.get(b"s", b""))
    if not combined.startswith(nonce.encode()) or len(combined) == len(nonce) or not salt:
        raise SaslError("the broker's SCRAM message does not contain the client's nonce")
    if (
        not digits.isdigit()
        or len(digits) > len(str(ITERATIONS_MAX))
        or not ITERATIONS_MIN <= int(digits) <= ITERATIONS_MAX
    ):
        asked = digits.decode(errors="replace")[:20]
        raise SaslError(
            f"the broker asks for {asked} SCRAM iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        )
    return combined, salt, int(digits)


def _base64(text: bytes) -> bytes:
    """Decodes base64. Errors: SaslError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("the broker sent invalid base64 in a SCRAM message") from None
