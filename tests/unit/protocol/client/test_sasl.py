"""SASL as a client: the exchanges of the RFCs byte for byte, dishonest brokers, and every pair of state and event."""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools

import pytest

from lowtide.protocol.client.sasl import (
    ITERATIONS_MAX,
    TOKEN_BYTES_MAX,
    ClientSaslExchange,
    ClientSaslSettings,
    SaslError,
    SaslEvent,
    SaslState,
)

PENCIL = ClientSaslSettings(mechanism="SCRAM-SHA-256", username="user", password="pencil")


CHALLENGE = b"r=abcd,s=c2FsdA==,i=4096"


def ended(exchange: ClientSaslExchange, received: bytes) -> bool:
    return exchange.step(received) is None and exchange.state is SaslState.DONE


def test_plain_is_the_token_of_rfc_4616():
    exchange = ClientSaslExchange(
        ClientSaslSettings(mechanism="PLAIN", username="tim", password="tanstaaftanstaaf"), "n"
    )
    assert exchange.step(None) == b"\0tim\0tanstaaftanstaaf"
    assert ended(exchange, b"")
    with pytest.raises(SaslError):
        ClientSaslExchange(ClientSaslSettings(mechanism="PLAIN", username="a\0b", password=""), "n").step(None)


def test_scram_is_the_exchange_of_rfc_7677():
    """The example of its section 3, whose nonces and salt are known."""
    exchange = ClientSaslExchange(PENCIL, "rOprNGfwEbeRWgbNEkqO")
    assert exchange.step(None) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    combined = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    proof = exchange.step(b"r=" + combined + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096")
    assert proof == b"c=biws,r=" + combined + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert ended(exchange, b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_a_token_is_named_by_an_extension():
    """As Kafka's `ScramExtensions` has it: behind the nonce, and part of what is signed."""
    by_token = ClientSaslSettings(mechanism="SCRAM-SHA-256", username="user", password="pencil", by_token=True)
    exchange = ClientSaslExchange(by_token, "abc")
    assert exchange.step(None) == b"n,,n=user,r=abc,tokenauth=true"
    assert "pencil" not in repr(by_token)


@pytest.mark.parametrize(("mechanism", "name"), [("SCRAM-SHA-256", "sha256"), ("SCRAM-SHA-512", "sha512")])
def test_scram_proves_the_password_to_a_server_that_stores_only_its_keys(mechanism: str, name: str):
    """A server by RFC 5802, which stores only what it must; the name needs escaping."""
    salted = hashlib.pbkdf2_hmac(name, "pässword".encode(), b"salt", 5000)
    stored, server_key = (
        hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest(),
        hmac.digest(salted, b"Server Key", name),
    )
    exchange = ClientSaslExchange(ClientSaslSettings(mechanism=mechanism, username="a=b,c", password="pässword"), "abc")
    first = exchange.step(None)
    assert first == b"n,,n=a=3Db=2Cc,r=abc"
    challenge = b"r=abcdef,s=" + base64.b64encode(b"salt") + b",i=5000"
    without, _, proof = (exchange.step(challenge) or b"").rpartition(b",p=")
    signed = b",".join((first[3:], challenge, without))
    key = bytes(
        left ^ right for left, right in zip(base64.b64decode(proof), hmac.digest(stored, signed, name), strict=True)
    )
    assert hashlib.new(name, key).digest() == stored
    assert ended(exchange, b"v=" + base64.b64encode(hmac.digest(server_key, signed, name)))


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"r=other,s=c2FsdA==,i=4096",
        b"r=abc,s=c2FsdA==,i=4096",
        b"r=abcd,s=,i=4096",
        b"r=abcd,s=c2FsdA==,i=4095",
        b"r=abcd,s=c2FsdA==,i=%d" % (ITERATIONS_MAX + 1),
        b"r=abcd,s=c2FsdA==,i=9999999999999999999999",
        b"r=abcd,s=c2FsdA==,i=-5",
        b"r=abcd,s=c2FsdA==",
        b"r=abcd,s=*,i=4096",
        b"m=x,r=abcd,s=c2FsdA==,i=4096",
        b"r=abcd" * 20_000,
        b"rr=abcd,s=c2FsdA==,i=4096",
        b"r=abcd,s=c2FsdA==,i=4096,xx=1",
        b"r=abcd,s=c2FsdA==,i=4096,x",
    ],
)
def test_dishonest_brokers_are_refused(challenge: bytes):
    """A nonce that is not ours, too few iterations, or so many that the client would compute for minutes."""
    exchange = ClientSaslExchange(PENCIL, "abc")
    exchange.step(None)
    with pytest.raises(SaslError):
        exchange.step(challenge)


@pytest.mark.parametrize("final", [b"v=AAAA", b"", b"x=1", b"e=invalid-proof"])
def test_a_broker_without_the_password_is_refused(final: bytes):
    exchange = ClientSaslExchange(PENCIL, "abc")
    exchange.step(None)
    exchange.step(CHALLENGE)
    with pytest.raises(SaslError):
        exchange.step(final)


def test_mechanisms_that_are_missing_are_reported():
    with pytest.raises(SaslError, match="not supported; PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER are"):
        ClientSaslExchange(ClientSaslSettings(mechanism="GSSAPI"), "n")


BEARER = ClientSaslSettings(mechanism="OAUTHBEARER", token="e30.e30.-_x")


def test_the_token_of_an_issuer_is_sent_as_in_rfc_7628():
    exchange = ClientSaslExchange(BEARER, "n")
    assert exchange.step(None) == b"n,,\x01auth=Bearer e30.e30.-_x\x01\x01"
    assert ended(exchange, b"")
    assert "e30" not in repr(BEARER)


def test_a_challenge_to_a_token_is_acknowledged():
    """The broker ends the exchange then."""
    exchange = ClientSaslExchange(BEARER, "n")
    exchange.step(None)
    assert exchange.step(b'{"status":"invalid_token"}') == b"\x01"


@pytest.mark.parametrize("token", ["", "a b", "a\x01b", "a=", "é.b.c", "a" * 65_001])
def test_a_token_that_cannot_be_sent_is_not_shown(token: str):
    with pytest.raises(SaslError, match="not a JSON Web Token") as caught:
        ClientSaslExchange(ClientSaslSettings(mechanism="OAUTHBEARER", token=token), "n").step(None)
    assert not token or token not in str(caught.value)


# ---------------------------------------------------------------------- states and events
TOKENS = {
    SaslEvent.START: None,
    SaslEvent.EMPTY: b"",
    SaslEvent.UNREADABLE: b"{}",
    SaslEvent.EXTENSION: b"m=x," + CHALLENGE,
    SaslEvent.ERROR: b"e=other-error",
    SaslEvent.ATTRIBUTES: CHALLENGE,
}
"""One of each kind. None of them proves that the broker has the password."""

ENDS = {
    (SaslState.PLAIN_BEGINS, SaslEvent.START): SaslState.PASSWORD_SENT,
    (SaslState.SCRAM_BEGINS, SaslEvent.START): SaslState.FIRST_SENT,
    (SaslState.OAUTH_BEGINS, SaslEvent.START): SaslState.BEARER_SENT,
    (SaslState.BEARER_SENT, SaslEvent.EMPTY): SaslState.DONE,
    (SaslState.BEARER_SENT, SaslEvent.UNREADABLE): SaslState.BEARER_REFUSED,
    (SaslState.BEARER_SENT, SaslEvent.EXTENSION): SaslState.BEARER_REFUSED,
    (SaslState.BEARER_SENT, SaslEvent.ERROR): SaslState.BEARER_REFUSED,
    (SaslState.BEARER_SENT, SaslEvent.ATTRIBUTES): SaslState.BEARER_REFUSED,
    (SaslState.BEARER_REFUSED, SaslEvent.EMPTY): "did not end the login",
    (SaslState.BEARER_REFUSED, SaslEvent.UNREADABLE): "did not end the login",
    (SaslState.BEARER_REFUSED, SaslEvent.EXTENSION): "did not end the login",
    (SaslState.BEARER_REFUSED, SaslEvent.ERROR): "did not end the login",
    (SaslState.BEARER_REFUSED, SaslEvent.ATTRIBUTES): "did not end the login",
    (SaslState.PASSWORD_SENT, SaslEvent.EMPTY): SaslState.DONE,
    (SaslState.PASSWORD_SENT, SaslEvent.UNREADABLE): SaslState.DONE,
    (SaslState.PASSWORD_SENT, SaslEvent.EXTENSION): SaslState.DONE,
    (SaslState.PASSWORD_SENT, SaslEvent.ERROR): SaslState.DONE,
    (SaslState.PASSWORD_SENT, SaslEvent.ATTRIBUTES): SaslState.DONE,
    (SaslState.FIRST_SENT, SaslEvent.EMPTY): "invalid SCRAM message",
    (SaslState.FIRST_SENT, SaslEvent.UNREADABLE): "invalid SCRAM message",
    (SaslState.FIRST_SENT, SaslEvent.EXTENSION): "extension",
    (SaslState.FIRST_SENT, SaslEvent.ERROR): "does not contain the client's nonce",
    (SaslState.FIRST_SENT, SaslEvent.ATTRIBUTES): SaslState.PROOF_SENT,
    (SaslState.PROOF_SENT, SaslEvent.EMPTY): "invalid SCRAM message",
    (SaslState.PROOF_SENT, SaslEvent.UNREADABLE): "invalid SCRAM message",
    (SaslState.PROOF_SENT, SaslEvent.EXTENSION): "did not prove",
    (SaslState.PROOF_SENT, SaslEvent.ERROR): "refused the proof: other-error",
    (SaslState.PROOF_SENT, SaslEvent.ATTRIBUTES): "did not prove",
}
"""The next state, or the text of the error. Other pairs are our own bugs."""


def exchange_at(state: SaslState) -> ClientSaslExchange:
    is_plain = state in (SaslState.PLAIN_BEGINS, SaslState.PASSWORD_SENT, SaslState.DONE)
    is_bearer = state in (SaslState.OAUTH_BEGINS, SaslState.BEARER_SENT, SaslState.BEARER_REFUSED)
    settings = ClientSaslSettings(mechanism="PLAIN" if is_plain else "SCRAM-SHA-512", username="u", password="p")
    exchange = ClientSaslExchange(BEARER if is_bearer else settings, "abc")
    for token in (None, b"" if is_plain else CHALLENGE):
        if exchange.state is not state:
            exchange.step(token)
    assert exchange.state is state
    return exchange


@pytest.mark.parametrize(("state", "event"), list(itertools.product(SaslState, SaslEvent)))
def test_every_pair_of_state_and_event(state: SaslState, event: SaslEvent):
    exchange = exchange_at(state)
    end = ENDS.get((state, event))
    if isinstance(end, SaslState):
        exchange.step(TOKENS[event])
        assert exchange.state is end
    else:
        with pytest.raises(AssertionError if end is None else SaslError, match=None if end is None else str(end)):
            exchange.step(TOKENS[event])
        assert exchange.state is state
    assert {(at, what) for at, row in ClientSaslExchange.TABLE.items() for what in row} == set(ENDS)


@pytest.mark.parametrize("length", range(len(CHALLENGE)))
def test_a_challenge_that_is_cut_short_is_refused(length: int):
    exchange = exchange_at(SaslState.FIRST_SENT)
    with pytest.raises(SaslError):
        exchange.step(CHALLENGE[:length])


def test_a_challenge_may_be_as_large_as_the_limits_and_no_larger():
    largest = b"r=abcd,s=c2FsdA==,i=%d,x=" % ITERATIONS_MAX
    largest += b"y" * (TOKEN_BYTES_MAX - len(largest))
    assert exchange_at(SaslState.FIRST_SENT).step(largest)
    with pytest.raises(SaslError, match="a SCRAM message of 65537 bytes"):
        exchange_at(SaslState.FIRST_SENT).step(largest + b"y")
