"""SASL/OAUTHBEARER, the broker's side: one token, its form, and the challenge to one that doesn't hold."""

from __future__ import annotations

import pytest

from lowtide.broker.security.exchange import Challenge, LoginFailure, LoginSuccess
from lowtide.broker.security.jwt_claims import TokenHolder
from lowtide.broker.security.login import NEVER_MS, Login, Mechanism
from lowtide.broker.security.login_state import LoginState
from lowtide.broker.security.oauth_bearer import CHALLENGE, MECHANISM, TOKEN_BYTES_MAX, OAuthBearerExchange
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateResponse

NOW_MS = 1_800_000_000_000
HOLDERS = {
    "a.b.c": TokenHolder("alice", NOW_MS + 60_000),
    "d.e.f": TokenHolder("bob,=é", NOW_MS - 1),
    "g.h.i": TokenHolder("alice", NOW_MS + 1),
}


def exchange() -> OAuthBearerExchange:
    return OAuthBearerExchange(
        lambda token: HOLDERS.get(token, LoginFailure("it has expired", "alice")), lambda: NOW_MS
    )


def first(token: str = "a.b.c", authorization_id: str = "", extensions: str = "") -> bytes:
    return f"n,{authorization_id},\x01auth=Bearer {token}\x01{extensions}\x01".encode()


def test_a_token_that_holds_is_a_login_for_the_rest_of_its_time() -> None:
    assert exchange().step(first()) == LoginSuccess("alice", lifetime_ms=60_000)
    assert exchange().step(first("d.e.f")) == LoginSuccess("bob,=é", lifetime_ms=1), "within the skew"


def test_a_token_that_does_not_hold_is_challenged_and_then_refused() -> None:
    for answer in (b"\x01", b"", first()):
        made = exchange()
        assert made.step(first("x.y.z")) == Challenge(CHALLENGE)
        assert made.step(answer) == LoginFailure("it has expired", "alice"), "Kafka would look at another token"


@pytest.mark.parametrize(
    "token",
    [
        b"n,,\x01auth=bearer a.b.c\x01\x01",
        b"n,,\x01auth=BEARER   a.b.c\x01\x01",
        b"n,,\x01traceId=123\x01auth=Bearer a.b.c\x01key=any value\t~\r\n\x01\x01",
        b"n,a=alice,\x01auth=Bearer a.b.c\x01\x01",
    ],
)
def test_forms_of_the_token(token: bytes) -> None:
    assert exchange().step(token) == LoginSuccess("alice", lifetime_ms=60_000)


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"p=tls,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01\x01x",
        b"n,,auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a.b.c=\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01auth=Bearer d.e.f\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01key1=x\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01key=\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01=x\x01\x01",
        b"n,,\x01auth=Bearer a.b.c\x01key=\xff\x01\x01",
        b"n,a=,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=a=b,\x01auth=Bearer a.b.c\x01\x01",
        first("a" * TOKEN_BYTES_MAX),
    ],
)
def test_what_is_no_token_of_oauthbearer_is_refused_at_once(token: bytes) -> None:
    assert isinstance(exchange().step(token), LoginFailure)


@pytest.mark.parametrize("authorization_id", ["a=bob", "a=Alice", "a=alice=2C"])
def test_the_authorization_id_must_be_the_principal(authorization_id: str) -> None:
    """CVE-2017-12610."""
    assert exchange().step(first(authorization_id=authorization_id)) == LoginFailure(
        "it wants to act for another user", "alice"
    )


def test_a_long_token_takes_no_long_time() -> None:
    for token in (b"n,,\x01" + b"a=b\x01" * 16_000, b"n,a=" + b"=2C" * 21_000, b"n,,\x01auth=Bearer " + b" " * 65_000):
        assert isinstance(exchange().step(token), LoginFailure)


def login(lifetime_ms: int = 0) -> Login:
    made = Login({MECHANISM: Mechanism(exchange, lifetime_ms)})
    made.on_handshake(1, MECHANISM, 0)
    return made


def test_the_shorter_of_the_two_lifetimes_holds() -> None:
    for limit_ms, expected_ms in ((0, 60_000), (10_000, 10_000), (90_000, 60_000)):
        made = login(limit_ms)
        answer = made.on_token(first(), 1000).answer
        assert answer == SaslAuthenticateResponse(
            error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=expected_ms
        )
        assert made.expires_ms == 1000 + expected_ms != NEVER_MS


def test_a_connection_keeps_its_principal_when_it_logs_in_again() -> None:
    made = login()
    made.on_token(first(), 0)
    assert made.begins_again(5000)
    made.on_handshake(1, MECHANISM, 5000)
    assert not made.on_token(first("g.h.i"), 5000).failure
    assert made.expires_ms == 5001
    made.on_handshake(1, MECHANISM, 9000)
    assert "wants to become another principal" in made.on_token(first("d.e.f"), 9000).failure
    assert made.state is LoginState.ENDED


def test_the_answer_after_the_challenge_has_the_one_text() -> None:
    made = login()
    assert made.on_token(first("x.y.z"), 0).answer == SaslAuthenticateResponse(
        error_code=0, error_message=None, auth_bytes=CHALLENGE
    )
    reply = made.on_token(b"\x01", 0)
    text = "Authentication failed during authentication due to invalid credentials with SASL mechanism OAUTHBEARER"
    code = ErrorCode.SASL_AUTHENTICATION_FAILED
    assert reply.answer == SaslAuthenticateResponse(error_code=code, error_message=text, auth_bytes=b"")
    assert reply.failure == "OAUTHBEARER of user 'alice': it has expired"
    assert "x.y.z" not in reply.failure
