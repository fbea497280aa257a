"""SASL/PLAIN: three parts, of which the user and the password count."""

from __future__ import annotations

import pytest

from lowtide.broker.security.exchange import Accepted, Refused
from lowtide.broker.security.plain import PlainExchange, PlainUsers

USERS = PlainUsers({"alice": "pencil", "zoë": "crayon=,"})
WRONG = "the user is unknown, or the password is wrong"


@pytest.mark.parametrize(
    ("token", "outcome"),
    [
        (b"\0alice\0pencil", Accepted("alice")),
        (b"alice\0alice\0pencil", Accepted("alice")),
        ("\0zoë\0crayon=,".encode(), Accepted("zoë")),
        (b"bob\0alice\0pencil", Refused("it wants to act for another user", "alice")),
        (b"bob\0alice\0wrong", Refused(WRONG, "alice")),
        (b"\0alice\0Pencil", Refused(WRONG, "alice")),
        (b"\0alice\0pencil ", Refused(WRONG, "alice")),
        (b"\0bob\0pencil", Refused(WRONG, "bob")),
        (b"\0alice\0", Refused("the user or the password is empty", "alice")),
        (b"\0\0pencil", Refused("the user or the password is empty", "")),
        (b"alice\0pencil", Refused("the token has 2 parts instead of 3")),
        (b"\0alice\0pencil\0", Refused("the token has 4 parts instead of 3")),
        (b"", Refused("the token has 1 parts instead of 3")),
        (b"\0alice\0\xff", Refused("the token is not UTF-8")),
    ],
)
def test_a_token_is_a_user_with_the_right_password_or_refused(token: bytes, outcome: Accepted | Refused) -> None:
    assert PlainExchange(USERS).step(token) == outcome


def test_no_text_shows_a_password() -> None:
    assert repr(USERS) == "PlainUsers(2)"
    assert "pencil" not in repr(vars(USERS))
