"""The claims of tokens: which are needed, of which types, and when a token holds."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from lowtide.broker.security.exchange import LoginFailure
from lowtide.broker.security.jwt_claims import TokenHolder, TokenRules, check_claims, unchecked

NOW_S = 1_800_000_000
CLAIMS = {
    "iss": "https://issuer.example/",
    "sub": "alice",
    "aud": ["shop", "kafka"],
    "iat": NOW_S - 10,
    "exp": NOW_S + 60,
    "scope": "a b",
}
RULES = TokenRules(audiences=("kafka", "lake"), issuer="https://issuer.example/")


def check(rules: TokenRules = RULES, **changes: Any) -> TokenHolder | LoginFailure:
    claims = {name: value for name, value in (CLAIMS | changes).items() if value is not ...}
    return check_claims(json.dumps(claims).encode(), rules, NOW_S * 1000)


def test_a_token_that_holds() -> None:
    assert check() == TokenHolder("alice", (NOW_S + 60) * 1000)
    assert check(exp=NOW_S + 60.5) == TokenHolder("alice", NOW_S * 1000 + 60_500)
    assert check(sub=" \x01alice\n") == TokenHolder("alice", (NOW_S + 60) * 1000), "Kafka trims names"
    assert check(aud="lake") == check()
    assert check(scope=...) == check(scope=["a", "b"]) == check(scope=7) == check(jti="x") == check()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"exp": ...}, "exp is missing"),
        ({"iat": ...}, "iat is missing"),
        ({"exp": None}, "exp is missing"),
        ({"exp": "1800000060"}, "exp is no time"),
        ({"exp": True}, "exp is no time"),
        ({"exp": [1_800_000_060]}, "exp is no time"),
        ({"exp": 1e300}, "exp is no time"),
        ({"exp": (NOW_S + 60) * 1000}, "exp is no time"),
        ({"exp": -1}, "exp is no time"),
        ({"iat": "x"}, "iat is no time"),
        ({"nbf": "x"}, "nbf is no time"),
        ({"iat": NOW_S - 60, "exp": NOW_S - 30}, "expired"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iat": NOW_S + 61}, "ends before it begins"),
        ({"nbf": NOW_S + 61}, "ends before it begins"),
        ({"iss": ...}, "issued by None"),
        ({"iss": "https://issuer.example"}, "issued by 'https://issuer.example'"),
        ({"iss": ["https://issuer.example/"]}, "iss is no text"),
        ({"aud": ...}, "is for None"),
        ({"aud": "shop"}, "is for 'shop'"),
        ({"aud": []}, r"is for \[\]"),
        ({"aud": {"kafka": 1}}, "aud is neither"),
        ({"aud": ["kafka", 7]}, "aud is neither"),
        ({"sub": ...}, "sub is missing or empty"),
        ({"sub": " "}, "sub is missing or empty"),
        ({"sub": ["alice"]}, "sub is no text"),
        ({"sub": {"name": "alice"}}, "sub is no text"),
        ({"jti": 7}, "jti is no text"),
        ({"scope": ""}, "scope has an empty scope"),
        ({"scope": ["a", "a "]}, "scope has an empty scope, one twice"),
        ({"scope": ["a", 7]}, "scope has an empty scope"),
    ],
)
def test_a_token_that_does_not_hold(changes: dict[str, Any], reason: str) -> None:
    outcome = check(**changes)
    assert isinstance(outcome, LoginFailure)
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(outcome.reason)


def test_the_skew_counts_at_both_ends() -> None:
    assert isinstance(check(iat=NOW_S - 60, exp=NOW_S - 29), TokenHolder)
    assert isinstance(check(nbf=NOW_S + 30), TokenHolder)
    strict = msgspec.structs.replace(RULES, skew_s=0)
    assert check(strict, exp=NOW_S) == LoginFailure("it has expired", "alice")
    assert isinstance(check(strict, exp=NOW_S + 1), TokenHolder)


def test_without_expectations_any_audience_and_issuer_is_accepted() -> None:
    """The configuration allows that only on purpose."""
    anybody = TokenRules()
    assert isinstance(check(anybody), TokenHolder)
    assert isinstance(check(anybody, aud=7), LoginFailure)
    assert isinstance(check(anybody, aud=...), TokenHolder)
    assert isinstance(check(anybody, aud=..., iss=...), TokenHolder)


def test_what_is_not_expected_is_named() -> None:
    assert unchecked(RULES) == []
    assert unchecked(TokenRules(audiences=("a",))) == ["issuer"]
    assert unchecked(TokenRules()) == ["issuer", "audience"]


def test_other_claims_for_the_name_and_the_scope() -> None:
    rules = msgspec.structs.replace(RULES, subject_claim="email", scope_claim="scp")
    assert check(rules, email="a@example.org", scp=["x"], scope="") == TokenHolder("a@example.org", (NOW_S + 60) * 1000)
    assert isinstance(check(rules), LoginFailure)
    assert isinstance(check(rules, email="a@example.org", sub=7), LoginFailure), "sub has its type all the same"


@pytest.mark.parametrize(
    "payload", [b"", b"[]", b"7", b"\xff", b"[" * 100_000, b'{"a":' * 100_000, b'{"exp":NaN}', b'{"sub":"\xff"}']
)
def test_a_payload_that_is_no_object(payload: bytes) -> None:
    assert check_claims(payload, RULES, NOW_S * 1000) == LoginFailure("the token's claims are not an object in JSON")
