"""Signatures of tokens: which keys of a set are used for what, and that nothing unsigned passes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lowtide.broker.security.exchange import LoginFailure
from lowtide.broker.security.jwt_keys import (
    ID_CHARACTERS_MAX,
    KEY_TYPES,
    KEYS_MAX,
    UNKNOWN_IDS_MAX,
    UNKNOWN_REMEMBERED_MS,
    KeySetError,
    UnknownKey,
    UnknownKeys,
    read_key_set,
)
from tests.issuer import Issuer, by_hand, encoded, key_set

RSA, EC = Issuer("rsa", "RS256"), Issuer("ec", "ES256")


@pytest.mark.parametrize("algorithm", KEY_TYPES)
def test_every_algorithm_of_the_list_works(algorithm: str) -> None:
    issuer = Issuer("one", algorithm)
    keys = read_key_set(key_set(issuer, EC))
    claims = issuer.claims()  # Once: they name the second.
    assert json.loads(keys.verify(issuer.sign(claims))) == claims
    assert isinstance(keys.verify(Issuer("one", algorithm).token()), LoginFailure)


def test_the_key_is_found_by_its_id_type_and_use() -> None:
    keys = read_key_set(key_set(RSA, EC))
    assert len(keys) == 2
    assert keys.ids == {"rsa", "ec"}
    assert isinstance(keys.verify(EC.token()), bytes)
    assert keys.verify(Issuer("two").token()) == UnknownKey("two")
    assert keys.verify(Issuer("rsa").token()) == UnknownKey("rsa"), "an RSA key is not used for ES256"
    for_another = read_key_set(json.dumps({"keys": [RSA.public | {"alg": "RS512"}]}).encode())
    assert for_another.verify(RSA.token()) == UnknownKey("rsa")


def test_without_an_id_there_must_be_one_key_that_fits() -> None:
    nameless = Issuer(None)
    assert isinstance(read_key_set(key_set(nameless, RSA)).verify(nameless.token()), bytes)
    assert read_key_set(key_set(nameless, EC)).verify(nameless.token()) == LoginFailure(
        "it doesn't name the key that it is signed with"
    )


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "=.=.=",
        f"{encoded(b'[]')}.e30.e30",
        f"{encoded(b'[' * 3000)}.e30.e30",
        f"{encoded(b'{' * 5000)}.e30.e30",
        f"{encoded(json.dumps('alg').encode())}.e30.e30",
        by_hand({}, {}),
        by_hand({"alg": None}, {}),
        by_hand({"alg": ["ES256"], "kid": "ec"}, {}),
        by_hand({"alg": {"ES256": 1}, "kid": "ec"}, {}),
        by_hand({"alg": "ES256", "kid": ["ec"]}, {}),
        by_hand({"alg": "ES256", "kid": 7}, {}),
        by_hand({"alg": "ES256", "kid": "ec", "b64": False, "crit": ["b64"]}, {}),
        by_hand({"alg": "ES256", "kid": "ec"}, {}, b"x"),
        by_hand({"alg": "ES256", "kid": "ec", "pad": "x" * 8000}, {}, b"x"),
    ],
)
def test_what_is_no_token_is_refused(token: str) -> None:
    assert isinstance(read_key_set(key_set(EC)).verify(token), LoginFailure)


def test_headers_that_nobody_needs_to_understand_are_passed_over() -> None:
    token = EC.sign(EC.claims(), nonce="x", x5t="y")
    assert isinstance(read_key_set(key_set(EC)).verify(token), bytes)


def small(bits: int) -> dict[str, Any]:
    number = (1 << (bits - 1)) + 1
    return {"kty": "RSA", "n": encoded(number.to_bytes(bits // 8, "big")), "e": "AQAB"}


def test_keys_that_cannot_be_used_are_passed_over() -> None:
    strange = [
        7,
        {},
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"},
        {"kty": "PQC", "x": "y"},
        {"kty": ["EC"]},
        {"kty": "EC", "crv": "P-256", "x": "x"},
        {"kty": "EC", "crv": "P-256", "x": 1, "y": 2},
        EC.public | {"use": "enc"},
        EC.public | {"key_ops": ["encrypt"]},
        EC.public | {"key_ops": 7},
        EC.public | {"kid": 7},
        small(1024),
        small(16384),
    ]
    keys = read_key_set(json.dumps({"keys": [*strange, RSA.public]}).encode())
    assert keys.ids == {"rsa"}
    assert len(keys) == 1
    with pytest.raises(KeySetError, match=f"none of its {len(strange)} keys can be used"):
        read_key_set(json.dumps({"keys": strange}).encode())


def test_a_private_key_that_was_published_is_used_as_the_public_one() -> None:
    published = dict(EC.key.as_dict(private=True)) | {"kid": "ec"}
    keys = read_key_set(json.dumps({"keys": [published]}).encode())
    assert isinstance(keys.verify(EC.token()), bytes)
    assert not any(key.is_private for key in keys._keys)


@pytest.mark.parametrize(
    "content", [b"", b"x", b"[]", b"{}", b'{"keys":{}}', b'{"keys":[]}', b"[" * 5000, b"\xff", b'{"keys":["\xff"]}']
)
def test_what_is_no_key_set(content: bytes) -> None:
    with pytest.raises(KeySetError):
        read_key_set(content)


def test_so_many_keys_at_most() -> None:
    members = [EC.public | {"kid": str(number)} for number in range(KEYS_MAX + 5)]
    assert len(read_key_set(json.dumps({"keys": members}).encode())) == KEYS_MAX


def test_an_id_is_a_reason_once_in_a_minute() -> None:
    unknown = UnknownKeys()
    assert unknown.is_reason("a", 0)
    assert not unknown.is_reason("a", UNKNOWN_REMEMBERED_MS - 1)
    assert unknown.is_reason("b", UNKNOWN_REMEMBERED_MS - 1)
    assert unknown.is_reason("a", UNKNOWN_REMEMBERED_MS)


def test_an_id_that_was_found_is_a_reason_again() -> None:
    unknown = UnknownKeys()
    unknown.is_reason("a", 0)
    unknown.forget({"a", "z"})
    assert unknown.is_reason("a", 1)


def test_few_short_ids_are_remembered() -> None:
    unknown = UnknownKeys()
    assert not unknown.is_reason("a" * (ID_CHARACTERS_MAX + 1), 0)
    assert unknown.is_reason("a" * ID_CHARACTERS_MAX, 0)
    assert all(unknown.is_reason(str(number), 0) for number in range(UNKNOWN_IDS_MAX + 1))
    assert len(unknown._until_ms) == UNKNOWN_IDS_MAX
    assert unknown.is_reason("0", 0)
    assert not unknown.is_reason(str(UNKNOWN_IDS_MAX), 0)
