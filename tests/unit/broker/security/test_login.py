"""The login of a connection: what is answered in each state, and that nothing else leads to a principal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lowtide.broker.security.exchange import LoginSuccess
from lowtide.broker.security.login import AGAIN_INTERVAL_MS, NEVER_MS, Login, Mechanism, Reply
from lowtide.broker.security.login_state import LoginState
from lowtide.broker.security.plain import PlainExchange, PlainUsers
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, ShownBy
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeResponse

ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")
RIGHT, OTHER, WRONG = b"\0alice\0pencil", b"\0bob\0rubber", b"\0alice\0wrong"
TEXT = "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"


def login(lifetime_ms: int = 0) -> Login:
    begin = partial(PlainExchange, PlainUsers({"alice": "pencil", "bob": "rubber"}))
    return Login({"PLAIN": Mechanism(begin, lifetime_ms), "OTHER": Mechanism(begin)})


def logged_in(lifetime_ms: int = 0, now_ms: int = 0) -> Login:
    made = login(lifetime_ms)
    made.on_handshake(1, "PLAIN", now_ms)
    assert not made.on_token(RIGHT, now_ms).failure
    return made


def test_the_usual_way() -> None:
    made = login()
    assert made.on_versions(succeeds=True) == Reply()
    assert made.on_handshake(1, "PLAIN", 0).answer == SaslHandshakeResponse(error_code=0, mechanisms=["PLAIN", "OTHER"])
    assert made.principal is ANONYMOUS
    answer = SaslAuthenticateResponse(error_code=0, error_message=None, auth_bytes=b"", session_lifetime_ms=0)
    assert made.on_token(RIGHT, 0) == Reply(answer)
    assert (made.state, made.principal, made.expires_ms) == (LoginState.LOGGED_IN, ALICE, NEVER_MS)


def test_bare_tokens_follow_an_old_handshake() -> None:
    made = login()
    made.on_handshake(0, "PLAIN", 0)
    assert made.on_token(RIGHT, 0) == Reply(b"")
    assert made.principal == ALICE


def test_a_wrong_credential_has_one_text_and_no_answer_to_bare_tokens() -> None:
    for token in (WRONG, b"\0mallory\0pencil", b"bob\0alice\0pencil", b"nonsense"):
        made = login()
        made.on_handshake(1, "PLAIN", 0)
        reply = made.on_token(token, 0)
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        assert reply.answer == SaslAuthenticateResponse(error_code=code, error_message=TEXT, auth_bytes=b"")
        assert reply.failure
        assert made.principal is ANONYMOUS
    made = login()
    made.on_handshake(0, "PLAIN", 0)
    assert made.on_token(WRONG, 0).answer is None


def test_a_mechanism_that_is_not_enabled_is_refused_with_the_list() -> None:
    made = login()
    code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert made.on_handshake(1, "plain", 0).answer == SaslHandshakeResponse(
        error_code=code, mechanisms=["PLAIN", "OTHER"]
    )
    assert made.state is LoginState.ENDED


STEPS: dict[str, Callable[[Login], Reply]] = {
    "versions": lambda made: made.on_versions(succeeds=True),
    "strange versions": lambda made: made.on_versions(succeeds=False),
    "handshake": lambda made: made.on_handshake(1, "PLAIN", 0),
    "old handshake": lambda made: made.on_handshake(0, "PLAIN", 0),
    "other mechanism": lambda made: made.on_handshake(1, "OTHER", 0),
    "no mechanism": lambda made: made.on_handshake(1, "GSSAPI", 0),
    "right": lambda made: made.on_token(RIGHT, 0),
    "wrong": lambda made: made.on_token(WRONG, 0),
    "another request": lambda made: made.fail("another request"),
}


def test_only_a_handshake_and_the_right_password_lead_to_a_principal() -> None:
    """Every order of four steps."""
    ways = set()
    for names in itertools.product(STEPS, repeat=4):
        made, taken = login(), []
        for name in names:
            if STEPS[name](made).failure:
                break
            taken.append(name)
            if made.state is LoginState.LOGGED_IN:
                ways.add(tuple(taken))
                break
        assert (made.principal == ALICE) == (made.state is LoginState.LOGGED_IN)
    beginnings = [
        (),
        ("versions",),
        ("strange versions",),
        ("strange versions", "versions"),
        ("strange versions", "strange versions"),
    ]
    shakes = ("handshake", "old handshake", "other mechanism")
    assert ways == {(*beginning, shake, "right") for beginning in beginnings for shake in shakes}


def test_a_login_that_ends_can_be_made_again_by_the_same_principal() -> None:
    made = logged_in(60_000)
    assert made.expires_ms == 60_000
    assert not made.begins_again(AGAIN_INTERVAL_MS - 1)
    assert made.begins_again(AGAIN_INTERVAL_MS)
    made.on_handshake(1, "PLAIN", 5_000)
    assert made.state is LoginState.TOKENS_AGAIN
    answer = made.on_token(RIGHT, 6_000).answer
    assert isinstance(answer, SaslAuthenticateResponse)
    assert answer.session_lifetime_ms == 60_000
    assert (made.principal, made.expires_ms) == (ALICE, 66_000)


@pytest.mark.parametrize("token", [OTHER, WRONG])
def test_a_login_again_changes_no_principal(token: bytes) -> None:
    made = logged_in(60_000)
    made.on_handshake(1, "PLAIN", 5_000)
    reply = made.on_token(token, 6_000)
    assert isinstance(reply.answer, SaslAuthenticateResponse)
    assert reply.answer.error_message == TEXT.replace("during authentication", "during re-authentication")
    assert (made.state, made.principal) == (LoginState.ENDED, ALICE)


@pytest.mark.parametrize(("version", "mechanism"), [(1, "OTHER"), (0, "PLAIN")])
def test_a_login_again_changes_no_mechanism(version: int, mechanism: str) -> None:
    made = logged_in(60_000)
    assert made.on_handshake(version, mechanism, 5_000).failure
    assert made.state is LoginState.ENDED


def test_a_login_without_an_end_is_not_made_again() -> None:
    assert not logged_in().begins_again(1 << 40)


class ByToken:
    """A mechanism whose client has a token that lasts for so long."""

    def __init__(self, lifetime_ms: int) -> None:
        self.lifetime_ms = lifetime_ms

    def step(self, _token: bytes) -> LoginSuccess:
        return LoginSuccess("alice", b"", self.lifetime_ms, by_token=True)


@pytest.mark.parametrize(
    ("token_ms", "mechanism_ms", "expected_ms"), [(5_000, 0, 5_000), (5_000, 3_000, 3_000), (5_000, 9_000, 5_000)]
)
def test_a_login_by_token_ends_with_the_token(token_ms: int, mechanism_ms: int, expected_ms: int) -> None:
    made = Login({"T": Mechanism(partial(ByToken, token_ms), mechanism_ms)})
    made.on_handshake(1, "T", 100)
    answer = made.on_token(b"", 100).answer
    assert isinstance(answer, SaslAuthenticateResponse)
    assert (answer.session_lifetime_ms, made.expires_ms) == (expected_ms, 100 + expected_ms)
    assert (made.principal, made.shown_by) == (ALICE, ShownBy.TOKEN)
    assert not made.shown_by.may_ask_for_tokens


def test_a_login_again_with_the_own_password_is_no_longer_one_by_token() -> None:
    """The mechanism stays the same, the kind of the credential may be another."""
    exchanges: Any = iter([ByToken(5_000), PlainExchange(PlainUsers({"alice": "pencil"}))])
    made = Login({"T": Mechanism(lambda: next(exchanges))})
    made.on_handshake(1, "T", 0)
    made.on_token(b"", 0)
    made.on_handshake(1, "T", 2_000)
    assert not made.on_token(RIGHT, 2_000).failure
    assert (made.shown_by, made.expires_ms) == (ShownBy.LOGIN, NEVER_MS)
