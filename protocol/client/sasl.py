"""SASL as a client speaks it: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802, 7677), OAUTHBEARER (RFC 7628).

Tokens in, tokens out.
    PLAIN_BEGINS ── start ──> PASSWORD_SENT ── any answer ──> DONE OAUTH_BEGINS ── start ──> BEARER_SENT ── an empty
    answer ──> DONE BEARER_SENT ── a challenge, which says why ──> BEARER_REFUSED ── anything ──> SaslError SCRAM_BEGINS
    ── start ──> FIRST_SENT ── a challenge that continues our nonce ──> PROOF_SENT ── the broker's own proof ──> DONE
    FIRST_SENT, PROOF_SENT ── anything else ──> SaslError

Neither names nor passwords are normalized (SASLprep), as in Kafka. PLAIN sends the password as it is: without TLS
anything on the way reads it, and so does OAUTHBEARER with the token of its issuer. SCRAM also proves that the broker
has the password.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, Final, TypeAlias

ITERATIONS_MIN: Final = 4096
"""RFC 5802 and Kafka's ScramMechanism: fewer would make a stolen exchange cheap to try passwords on."""

ITERATIONS_MAX: Final = 100_000
"""Kafka's brokers allow 16,384. A broker must not be able to keep us computing."""

TOKEN_BYTES_MAX: Final = 64 * 1024

BEARER: Final = re.compile(r"[-_.A-Za-z0-9]{1,65000}", re.ASCII)
"""A token of an issuer, as Kafka takes it: a JSON Web Token. The limit lets it fit into `TOKEN_BYTES_MAX`."""

_NO_CHANNEL_BINDING: Final = b"n,,"
_TOKEN_EXTENSION: Final = ",tokenauth=true"  # noqa: S105 - a flag

Attributes: TypeAlias = Mapping[bytes, bytes]


class SaslError(Exception):
    """The exchange cannot continue: one message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """Who we say we are. `repr` shows neither password nor token."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    """What an issuer has signed, for OAUTHBEARER. It ends: each login has the one of then."""
    by_token: bool = False
    """Whether the name is the id of a delegation token, and the password its HMAC as base64 (KIP-48). Only SCRAM has that."""


class State(Enum):
    """Where an exchange stands."""

    PLAIN_BEGINS = "nothing is sent yet; the mechanism is PLAIN"
    SCRAM_BEGINS = "nothing is sent yet; the mechanism is SCRAM"
    OAUTH_BEGINS = "nothing is sent yet; the mechanism is OAUTHBEARER"
    PASSWORD_SENT = "PLAIN: name and password are sent"  # noqa: S105
    FIRST_SENT = "SCRAM: name and nonce are sent, the broker's challenge comes next"
    PROOF_SENT = "SCRAM: our proof is sent, the broker's own comes next"
    BEARER_SENT = "OAUTHBEARER: the issuer's token is sent"
    BEARER_REFUSED = "OAUTHBEARER: the token is not accepted, and the broker ends the exchange next"
    DONE = "both sides are satisfied"


class Event(Enum):
    """What a broker's token is."""

    START = "no token: the exchange begins"
    EMPTY = "nothing in it"
    UNREADABLE = "not a list of attributes as SCRAM has them, or too long"
    EXTENSION = "has the attribute m, an extension that must be understood"
    ERROR = "has the attribute e"
    ATTRIBUTES = "any other list of attributes"


_BEGINS: Final = {
    "PLAIN": State.PLAIN_BEGINS,
    "SCRAM-SHA-256": State.SCRAM_BEGINS,
    "SCRAM-SHA-512": State.SCRAM_BEGINS,
    "OAUTHBEARER": State.OAUTH_BEGINS,
}
_ANSWERS: Final = (Event.EMPTY, Event.UNREADABLE, Event.EXTENSION, Event.ERROR, Event.ATTRIBUTES)
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class SaslExchange:
    """One exchange. `nonce` is printable, without commas, and never used twice."""

    def __init__(self, settings: SaslSettings, nonce: str) -> None:
        """Errors: SaslError for a mechanism that isn't supported."""
        if settings.mechanism not in _BEGINS:
            raise SaslError(f"the SASL mechanism {settings.mechanism} is not supported yet; {', '.join(_BEGINS)} are")
        self.state = _BEGINS[settings.mechanism]
        self._settings = settings
        self._nonce = nonce
        self._hash = _HASHES.get(settings.mechanism, "")
        self._first_bare = b""
        self._expected = b""
        """The proof that a broker gives which has the password."""

    def step(self, received: bytes | None) -> bytes | None:
        """The token to send after this one (None: at the beginning), or None when the exchange is done.

        Errors: SaslError.
        """
        event, attributes = (Event.START, {}) if received is None else _classified(received)
        handle = self.TABLE[self.state].get(event)
        assert handle is not None, f"{event} at {self.state}"
        return handle(self, received or b"", attributes)

    # ------------------------------------------------------------------ what happens in a pair of the table
    def _send_password(self, _received: bytes, _attributes: Attributes) -> bytes:
        username, password = self._settings.username, self._settings.password
        if "\0" in username or "\0" in password:
            raise SaslError("PLAIN can't carry a name or a password with a zero character")
        self.state = State.PASSWORD_SENT
        return f"\0{username}\0{password}".encode()

    def _send_bearer(self, _received: bytes, _attributes: Attributes) -> bytes:
        if BEARER.fullmatch(self._settings.token) is None:
            raise SaslError("the token for OAUTHBEARER is empty, or has characters that a JSON Web Token can't have")
        self.state = State.BEARER_SENT
        return f"n,,\x01auth=Bearer {self._settings.token}\x01\x01".encode()

    def _acknowledge(self, _received: bytes, _attributes: Attributes) -> bytes:
        self.state = State.BEARER_REFUSED
        return b"\x01"

    def _refuse_answer(self, _received: bytes, _attributes: Attributes) -> None:
        raise SaslError("the broker didn't accept the token, and then didn't end the login")

    def _finish(self, _received: bytes, _attributes: Attributes) -> None:
        self.state = State.DONE

    def _send_first(self, _received: bytes, _attributes: Attributes) -> bytes:
        name = self._settings.username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={name},r={self._nonce}{_TOKEN_EXTENSION if self._settings.by_token else ''}".encode()
        self.state = State.FIRST_SENT
        return _NO_CHANNEL_BINDING + self._first_bare

    def _send_proof(self, received: bytes, attributes: Attributes) -> bytes:
        combined, salt, iterations = _challenge(attributes, self._nonce)
        salted = hashlib.pbkdf2_hmac(self._hash, self._settings.password.encode(), salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = b"c=" + base64.b64encode(_NO_CHANNEL_BINDING) + b",r=" + combined
        signed = b",".join((self._first_bare, received, without_proof))
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), signed, self._hash)
        proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
        self._expected = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), signed, self._hash)
        self.state = State.PROOF_SENT
        return without_proof + b",p=" + base64.b64encode(proof)

    def _check_proof(self, received: bytes, attributes: Attributes) -> None:
        if b"e" in attributes:
            self._refuse_error(received, attributes)
        if not hmac.compare_digest(_base64(attributes.get(b"v", b"")), self._expected):
            raise SaslError("the broker couldn't prove that it knows the password: it may be an impostor")
        self.state = State.DONE

    def _refuse_error(self, _received: bytes, attributes: Attributes) -> None:
        raise SaslError(f"the broker refused the proof: {attributes[b'e'].decode(errors='replace')}")

    def _refuse_extension(self, _received: bytes, _attributes: Attributes) -> None:
        raise SaslError("the broker asks for an unknown SCRAM extension")

    def _refuse_unreadable(self, received: bytes, _attributes: Attributes) -> None:
        if len(received) > TOKEN_BYTES_MAX:
            raise SaslError(f"the broker sent a SCRAM message of {len(received)} bytes")
        raise SaslError("the broker sent what isn't a SCRAM message")

    TABLE: ClassVar[Mapping[State, Mapping[Event, Callable[[SaslExchange, bytes, Attributes], bytes | None]]]] = {
        State.PLAIN_BEGINS: {Event.START: _send_password},
        State.SCRAM_BEGINS: {Event.START: _send_first},
        State.OAUTH_BEGINS: {Event.START: _send_bearer},
        State.PASSWORD_SENT: dict.fromkeys(_ANSWERS, _finish),
        State.BEARER_SENT: dict.fromkeys(_ANSWERS, _acknowledge) | {Event.EMPTY: _finish},
        State.BEARER_REFUSED: dict.fromkeys(_ANSWERS, _refuse_answer),
        State.FIRST_SENT: {
            Event.EMPTY: _refuse_unreadable,
            Event.UNREADABLE: _refuse_unreadable,
            Event.EXTENSION: _refuse_extension,
            Event.ERROR: _send_proof,  # which refuses a challenge without nonce, salt and iterations
            Event.ATTRIBUTES: _send_proof,
        },
        State.PROOF_SENT: {
            Event.EMPTY: _refuse_unreadable,
            Event.UNREADABLE: _refuse_unreadable,
            Event.EXTENSION: _check_proof,
            Event.ERROR: _refuse_error,
            Event.ATTRIBUTES: _check_proof,
        },
        State.DONE: {},
    }
    """What happens at each token. A pair that is missing is a bug of the conversation that drives the exchange, and raises."""


def _classified(token: bytes) -> tuple[Event, Attributes]:
    """What a token is; `r=...,s=...` also as a mapping."""
    if not token:
        return Event.EMPTY, {}
    if len(token) > TOKEN_BYTES_MAX:
        return Event.UNREADABLE, {}
    found: dict[bytes, bytes] = {}
    for part in token.split(b","):
        key, separator, value = part.partition(b"=")
        if len(key) != 1 or not separator:
            return Event.UNREADABLE, {}
        found[key] = value
    return Event.EXTENSION if b"m" in found else Event.ERROR if b"e" in found else Event.ATTRIBUTES, found


def _challenge(attributes: Attributes, nonce: str) -> tuple[bytes, bytes, int]:
    """Combined nonce, salt and iterations of the broker's first message. Errors: SaslError."""
    combined, digits = attributes.get(b"r", b""), attributes.get(b"i", b"")
    salt = _base64(attributes.get(b"s", b""))
    if not combined.startswith(nonce.encode()) or len(combined) == len(nonce) or not salt:
        raise SaslError("the broker's SCRAM message doesn't continue ours")
    if (
        not digits.isdigit()
        or len(digits) > len(str(ITERATIONS_MAX))
        or not ITERATIONS_MIN <= int(digits) <= ITERATIONS_MAX
    ):
        asked = digits.decode(errors="replace")[:20]
        message = f"the broker asks for {asked} SCRAM iterations: {ITERATIONS_MIN} to {ITERATIONS_MAX} are allowed"
        raise SaslError(message)
    return combined, salt, int(digits)


def _base64(text: bytes) -> bytes:
    """Errors: SaslError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("the broker sent what isn't base64 in a SCRAM message") from None
