"""Reads the public keys of a key set (RFC 7517), and verifies the signatures of JSON Web Tokens (RFC 7515).

Guards: only asymmetric algorithms are accepted, whatever else the library knows. `none`, and algorithms whose secret
would be the public key (HS256), never reach a key. A key is used only for its own algorithms. Keys that a token's
header brings along (`jku`, `jwk`, `x5c`) are ignored. Whatever error the library raises, the token is refused.

Importing joserfc takes a tenth of a second, so this module is imported only if OAUTHBEARER is enabled. Sources: Kafka's
`RefreshingHttpsJwksVerificationKeyResolver`, jose4j's `VerificationJwkSelector`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import msgspec
from joserfc.jwk import JWKRegistry, Key
from joserfc.jws import CompactSignature, JWSRegistry, extract_compact, validate_compact

from lowtide.broker.security.exchange import LoginFailure
from lowtide.runtime.json_text import decode_json

KEYS_MAX: Final = 64
"""The maximum number of keys in a set; others are ignored. An issuer has two or three."""

RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
"""Shorter keys can be broken; longer ones block the event loop for more than a millisecond per signature."""

KEY_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), "RSA"),
    **dict.fromkeys(("ES256", "ES384", "ES512"), "EC"),
    **dict.fromkeys(("EdDSA", "Ed25519"), "OKP"),
}
"""The accepted algorithms, and the type of key for each."""

_PUBLIC_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_RSA_DIGITS: Final = range(-(-RSA_BITS_MIN // 6), -(-RSA_BITS_MAX // 6) + 1)
_SHOWN_CHARACTERS: Final = 60

UNKNOWN_IDS_MAX: Final = 16
ID_CHARACTERS_MAX: Final = 1000
UNKNOWN_REMEMBERED_MS: Final = 60_000
"""Kafka's three values."""


class KeySetError(ValueError):
    """A key set can't be used. The message is a few words."""


class UnknownKey(msgspec.Struct, frozen=True, gc=False):
    """The key set lacks a token's key."""

    key_id: str


class _Registry(JWSRegistry):
    """Replaces the library's list of algorithms and its limits."""

    max_header_length = 4096
    max_signature_length = 4 * RSA_BITS_MAX // 8

    def get_alg(self, name: str) -> Any:
        assert name in KEY_TYPES, name
        return self.algorithms[name]


_REGISTRY: Final = _Registry(strict_check_header=False)


class TokenKeys:
    """The keys of a set. `read_key_set` makes it."""

    def __init__(self, keys: tuple[Key, ...]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def ids(self) -> frozenset[str]:
        """Returns the ids of the keys that have one."""
        return frozenset(key.kid for key in self._keys if key.kid is not None)

    def verify(self, token: str) -> bytes | LoginFailure | UnknownKey:
        """Returns the payload of a token signed with one of the keys."""
        try:
            signed = extract_compact(token.encode(), registry=_REGISTRY)
            key = self._key_of(signed)
            if isinstance(key, LoginFailure | UnknownKey):
                return key
            if not validate_compact(signed, key, registry=_REGISTRY):
                return LoginFailure("its signature is not that of the key")
        except Exception as error:  # noqa: BLE001 - whatever the library raises, the token is not verified
            return LoginFailure(f"it can't be verified ({type(error).__name__})")
        return signed.payload

    def _key_of(self, signed: CompactSignature) -> Key | LoginFailure | UnknownKey:
        """Returns the key that the token's header names."""
        header: Any = signed.headers()
        algorithm, key_id = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in KEY_TYPES:
            return LoginFailure(
                f"its algorithm is {repr(algorithm)[:_SHOWN_CHARACTERS]}, allowed are {', '.join(KEY_TYPES)}"
            )
        if "crit" in header or "b64" in header:
            return LoginFailure("it has a header that must be understood")
        if not isinstance(key_id, str | None):
            return LoginFailure("the id of its key is no text")
        fitting = [
            key for key in self._keys if key.key_type == KEY_TYPES[algorithm] and key.get("alg") in (None, algorithm)
        ]
        found = fitting if key_id is None else [key for key in fitting if key.kid == key_id]
        if key_id is None:
            return found[0] if len(found) == 1 else LoginFailure("it doesn't name the key that it is signed with")
        return found[0] if found else UnknownKey(key_id)


def read_key_set(content: bytes) -> TokenKeys:
    """Reads the usable keys of a set in JSON. Errors: KeySetError, also if there is none."""
    try:
        decoded = decode_json(content)
    except ValueError:
        raise KeySetError("it is not JSON") from None
    members = decoded.get("keys") if isinstance(decoded, dict) else None
    if not isinstance(members, list):
        raise KeySetError("it is not a set of keys")
    keys = tuple(key for key in map(_key, members[:KEYS_MAX]) if key is not None)
    if not keys:
        raise KeySetError(
            f"none of its {len(members)} keys can be used: allowed are public keys of the types "
            f"{', '.join(_PUBLIC_MEMBERS)}"
        )
    return TokenKeys(keys)


def _key(member: Any) -> Key | None:
    """Returns the public part of a signature key, or None for other keys."""
    if not isinstance(member, dict):
        return None
    needed = _PUBLIC_MEMBERS.get(str(member.get("kty")))
    operations = member.get("key_ops", ["verify"])
    if (
        needed is None
        or member.get("use", "sig") != "sig"
        or not isinstance(operations, list)
        or "verify" not in operations
    ):
        return None
    public = {name: member[name] for name in ("kty", "kid", "alg", *needed) if name in member}
    if not all(isinstance(value, str) for value in public.values()) or not _has_fitting_length(public):
        return None
    try:
        key = JWKRegistry.import_key(public)
        assert key.public_key is not None
    except Exception:  # noqa: BLE001 - a key that the library can't read is passed over, as RFC 7517 has it
        return None
    return key


def _has_fitting_length(public: Mapping[str, str]) -> bool:
    """Returns whether an RSA key has an acceptable length, by its base64 digits; other keys have fixed lengths."""
    digits = len(public["n"].rstrip("=")) if public["kty"] == "RSA" and "n" in public else _RSA_DIGITS.start
    return digits in _RSA_DIGITS


class UnknownKeys:
    """Remembers the last unknown key ids, by monotonic time.

    Each id is a reason to fetch the key set, but not for each token. Source: Kafka's
    `RefreshingHttpsJwks.maybeExpediteRefresh`.
    """

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}
        """The end of each id's grace period, ordered by age."""

    def is_reason(self, key_id: str, now_ms: int) -> bool:
        """Returns whether to fetch the key set for this id, and remembers the id if so."""
        if len(key_id) > ID_CHARACTERS_MAX or self._until_ms.get(key_id, now_ms) > now_ms:
            return False
        self._until_ms.pop(key_id, None)
        self._until_ms[key_id] = now_ms + UNKNOWN_REMEMBERED_MS
        if len(self._until_ms) > UNKNOWN_IDS_MAX:
            del self._until_ms[next(iter(self._until_ms))]
        return True

    def forget(self, key_ids: Collection[str]) -> None:
        """Forgets ids that are known now."""
        for key_id in key_ids:
            self._until_ms.pop(key_id, None)
