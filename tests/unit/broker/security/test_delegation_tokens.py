"""Delegation tokens: their HMACs, and who may do what with them."""

from __future__ import annotations

import base64

import pytest

from lowtide.broker.security.delegation_tokens import (
    TIME_MAX_MS,
    TokenSecret,
    credentials_of,
    is_shown,
    later,
    may_change,
    password_of,
    secret_of,
)
from lowtide.broker.security.principal import KafkaPrincipal, ShownBy, parse_principal
from lowtide.metadata.records import TokenRecord
from lowtide.protocol.scram import ScramMechanism, credential_of, salted_password

TOKEN = TokenRecord("t", "User:alice", "User:carol", ("User:bob",), 0, 100, 500, {})
RFC_4231 = (
    "164b7a7bfcf819e2e395fbe73b56e0a387bd64222e831fd610270cd7ea250554"
    "9758bf75c05a994a6d034f65f8f0e6fdcaeab1a34d4a6b4b636e070a38bce737"
)
"""Its second test case: the key `Jefe`."""


def principal(name: str) -> KafkaPrincipal:
    return parse_principal(f"User:{name}")


def test_the_hmac_is_that_of_kafka() -> None:
    """HMAC-SHA512 of the id; the password is its base64, as Java's encoder writes it."""
    found = TokenSecret("Jefe").hmac_of("what do ya want for nothing?")
    assert found.hex() == RFC_4231
    assert password_of(found) == base64.b64encode(found).decode()


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_the_credential_checks_the_password(mechanism: ScramMechanism) -> None:
    made = credentials_of(b"hmac", [(mechanism, b"salt")])
    salted = salted_password(mechanism, password_of(b"hmac"), b"salt", 4096)
    assert made == {mechanism: credential_of(mechanism, salted, b"salt", 4096)}


def test_without_a_secret_there_are_no_tokens_and_no_text_shows_one() -> None:
    assert [secret_of(value) for value in (None, "", 1)] == [None, None, None]
    secret = secret_of("geheim")
    assert secret is not None
    assert "geheim" not in repr(secret)
    assert secret.salts != secret.hmac_of("salts of unknown tokens")[:32]


def test_owners_and_renewers_change_a_token_and_its_requester_sees_it() -> None:
    assert [may_change(TOKEN, principal(name)) for name in ("alice", "bob", "carol", "dave")] == [
        True,
        True,
        False,
        False,
    ]
    assert [is_shown(TOKEN, principal(name), None, lambda _: False) for name in ("alice", "bob", "carol", "dave")] == [
        True,
        True,
        True,
        False,
    ]
    assert is_shown(TOKEN, principal("dave"), None, lambda _: True)
    assert not is_shown(TOKEN, principal("alice"), [], lambda _: True), "none are asked for"
    assert not is_shown(TOKEN, principal("dave"), ["User:dave"], lambda _: True), "it does not concern that principal"
    assert is_shown(TOKEN, principal("dave"), ["User:dave", "User:bob"], lambda _: True)


def test_a_token_has_an_end() -> None:
    assert later(5, 7) == 12
    assert later(5, TIME_MAX_MS) == TIME_MAX_MS
    assert TOKEN.until_ms == 100


def test_tokens_are_for_those_who_have_shown_who_they_are_without_one() -> None:
    assert {each for each in ShownBy if each.may_ask_for_tokens} == {ShownBy.CERTIFICATE, ShownBy.LOGIN}
