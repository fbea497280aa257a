"""Principals: their text, and texts that are no principal."""

from __future__ import annotations

import pytest

from lowtide.broker.network.connection.connection import Connection
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import ANONYMOUS, KafkaPrincipal, parse_principal


@pytest.mark.parametrize(
    ("text", "kind", "name"), [("User:alice", "User", "alice"), ("Group:a:b", "Group", "a:b"), ("User:*", "User", "*")]
)
def test_a_principal_is_a_type_and_a_name(text: str, kind: str, name: str) -> None:
    assert parse_principal(text) == KafkaPrincipal(kind, name)
    assert str(parse_principal(text)) == text


@pytest.mark.parametrize("text", ["", "alice", ":alice", "User:", ":"])
def test_what_is_no_principal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="Type:name"):
        parse_principal(text)


def test_a_connection_without_a_login_is_anonymous() -> None:
    assert Connection.principal is ANONYMOUS


def test_a_request_is_that_of_its_connection() -> None:
    class Logged(Connection):
        principal = KafkaPrincipal("User", "alice")
        client_address = "10.0.0.7"

    context = RequestContext(3, "id", Logged.__new__(Logged))
    assert (str(context.principal), context.client_address) == ("User:alice", "10.0.0.7")
