"""The computations of SCRAM-SHA-256 and -512 for the side that verifies a password (RFC 5802, RFC 7677).

    salted password = PBKDF2(password, salt, iterations)
    client key      = HMAC(salted password, "Client Key")      stored key = H(client key)
    server key      = HMAC(salted password, "Server Key")
    proof           = client key XOR HMAC(stored key, messages)
    signature       = HMAC(server key, messages)

Names and passwords are not normalized (SASLprep), as in Kafka.
"""

from __future__ import annotations

import hashlib
import hmac
from enum import IntEnum
from typing import Final, NamedTuple

import msgspec

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
"""Source: Kafka's `ScramMechanism` and `ScramControlManager`."""


class ScramMechanism(IntEnum):
    """The mechanisms with their numbers in the protocol (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def text(self) -> str:
        return f"SCRAM-{self.name.replace('_', '-')}"

    @property
    def hash_name(self) -> str:
        return self.name.replace("_", "").lower()


SCRAM_MECHANISMS: Final = {mechanism.text: mechanism for mechanism in ScramMechanism}


SALT_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"
"""The characters in salts of Kafka's tools; other salts are arbitrary bytes."""


class ChallengeForm(NamedTuple):
    """The common properties of several users' challenges."""

    salt_bytes: int
    has_digits: bool
    """Whether the salt consists of `SALT_DIGITS`."""
    iterations: int


class ScramCredential(msgspec.Struct, frozen=True, gc=False):
    """Verifies a password without containing it. Its owner can impersonate the broker towards the user."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    @property
    def form(self) -> ChallengeForm:
        return ChallengeForm(len(self.salt), all(byte in SALT_DIGITS for byte in self.salt), self.iterations)

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Returns the salted password; takes milliseconds by design."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Returns the credential of a salted password."""
    client_key = hmac.digest(salted, b"Client Key", mechanism.hash_name)
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, hmac.digest(salted, b"Server Key", mechanism.hash_name), iterations)


def proves(mechanism: ScramMechanism, credential: ScramCredential, messages: bytes, proof: bytes) -> bool:
    """Verifies a client's proof in constant time."""
    signature = hmac.digest(credential.stored_key, messages, mechanism.hash_name)
    if len(proof) != len(signature):
        return False
    client_key = bytes(left ^ right for left, right in zip(proof, signature, strict=True))
    return hmac.compare_digest(hashlib.new(mechanism.hash_name, client_key).digest(), credential.stored_key)


def server_signature(mechanism: ScramMechanism, credential: ScramCredential, messages: bytes) -> bytes:
    """Returns the broker's proof that it has the credential."""
    return hmac.digest(credential.server_key, messages, mechanism.hash_name)
