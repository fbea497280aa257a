"""SASL/PLAIN: three parts, of which the user and the password count."""

from __future__ import annotations

import pytest

from lowtide.broker.security.exchange import LoginFailure, LoginSuccess
from lowtide.broker.security.plain import PlainExchange, PlainUsers

USERS = PlainUsers({"alice": "pencil", "zoë": "crayon=,"})
WRONG = "the user is unknown, or the password is wrong"


@pytest.mark.parametrize(
    ("token", "outcome"),
    [
        (b"\0alice\0pencil", LoginSuccess("alice")),
        (b"alice\0alice\0pencil", LoginSuccess("alice")),
        ("\0zoë\0crayon=,".encode(), LoginSuccess("zoë")),
        (b"bob\0alice\0pencil", LoginFailure("it wants to act for another user", "alice")),
        (b"bob\0alice\0wrong", LoginFailure(WRONG, "alice")),
        (b"\0alice\0Pencil", LoginFailure(WRONG, "alice")),
        (b"\0alice\0pencil ", LoginFailure(WRONG, "alice")),
        (b"\0bob\0pencil", LoginFailure(WRONG, "bob")),
        (b"\0alice\0", LoginFailure("the user or the password is empty", "alice")),
        (b"\0\0pencil", LoginFailure("the user or the password is empty", "")),
        (b"alice\0pencil", LoginFailure("the token has 2 parts instead of 3")),
        (b"\0alice\0pencil\0", LoginFailure("the token has 4 parts instead of 3")),
        (b"", LoginFailure("the token has 1 parts instead of 3")),
        (b"\0alice\0\xff", LoginFailure("the token is not UTF-8")),
    ],
)
def test_a_token_is_a_user_with_the_right_password_or_refused(
    token: bytes, outcome: LoginSuccess | LoginFailure
) -> None:
    assert PlainExchange(USERS).step(token) == outcome


def test_no_text_shows_a_password() -> None:
    assert repr(USERS) == "PlainUsers(2)"
    assert "pencil" not in repr(vars(USERS))
