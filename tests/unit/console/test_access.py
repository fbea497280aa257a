"""Who may do what with a resource, from the ACLs that apply to it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lowtide.admin.acls import Acl
from lowtide.admin.delegation_tokens import DelegationToken
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.admin.quotas import DEFAULT_NAME, QuotaEntity
from lowtide.console.access import ROWS_MAX, acls_view, quotas_view, rights, tokens_view
from lowtide.console.answers import RefusedError, encoded
from lowtide.protocol.acl_values import AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.protocol.errors import ErrorCode

TOPIC = AclResourceType.TOPIC


def acl(principal: str, operation: str, *, host: str = "*", denies: bool = False) -> Acl:
    permission = AclPermission.DENY if denies else AclPermission.ALLOW
    return Acl(TOPIC, "flights", AclPattern.LITERAL, principal, host, AclOperation[operation], permission)


def may(*acls: Acl) -> dict[str, tuple[list[str], list[str]]]:
    return {f"{row['principal']} {row['host']}": (row["may"], row["may_not"]) for row in rights(TOPIC, acls)}


def test_a_right_brings_those_that_it_implies():
    assert may(acl("User:ann", "READ"))["User:ann *"] == (["READ", "DESCRIBE"], [])
    assert may(acl("User:ann", "ALTER_CONFIGS"))["User:ann *"][0] == ["DESCRIBE_CONFIGS", "ALTER_CONFIGS"]
    assert len(may(acl("User:ann", "ALL"))["User:ann *"][0]) == 8


def test_a_denial_is_stronger_and_implies_nothing():
    found = may(acl("User:ann", "READ"), acl("User:ann", "READ", denies=True))
    assert found["User:ann *"] == (["DESCRIBE"], ["READ"])


def test_denials_for_everybody_and_everywhere_count_for_each():
    found = may(
        acl("User:ann", "READ", host="10.0.0.1"),
        acl("User:bob", "WRITE"),
        acl("User:*", "WRITE", denies=True),
        acl("User:ann", "READ", host="10.0.0.2", denies=True),
    )
    assert found["User:ann 10.0.0.1"] == (["READ", "DESCRIBE"], ["WRITE"])
    assert found["User:bob *"] == (["DESCRIBE"], ["WRITE"])
    assert found["User:ann 10.0.0.2"] == ([], ["READ", "WRITE"])


class Cluster:
    """A client that answers what a test gives it."""

    def __init__(self, **answers: Any) -> None:
        self._answers = answers

    def __getattr__(self, name: str) -> Any:
        async def answer(*_: Any) -> Any:
            if isinstance(self._answers[name], Exception):
                raise self._answers[name]
            return self._answers[name]

        return answer


def client(**answers: Any) -> Any:
    return cast("Any", Cluster(**answers))


async def test_a_cluster_without_an_authorizer_says_so():
    error = BrokerAnsweredError(ErrorCode.SECURITY_DISABLED, "the ACLs")
    assert not (await acls_view(client(describe_acls=error), {}))["secured"]
    with pytest.raises(BrokerAnsweredError):
        await acls_view(client(describe_acls=BrokerAnsweredError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "")), {})


async def test_lists_are_bounded_and_say_what_they_leave_out():
    found = await acls_view(client(describe_acls=[acl("User:ann", "READ")] * (ROWS_MAX + 3)), {})
    assert (len(found["acls"]), found["left_out"]) == (ROWS_MAX, 3)


async def test_an_unknown_type_is_refused():
    with pytest.raises(RefusedError, match="type must be one of topic, group"):
        await acls_view(client(), {"type": "galaxy", "name": "a"})


async def test_no_hmac_is_sent():
    token = DelegationToken(
        token_id="t",
        hmac=b"very secret",
        owner="User:ann",
        requester="",
        renewers=(),
        issued_ms=1,
        expires_ms=2,
        ends_ms=3,
    )
    sent = encoded(await tokens_view(client(describe_delegation_tokens=[token])))
    assert b"User:ann" in sent
    assert b"secret" not in sent
    assert token.password.encode() not in sent


async def test_defaults_of_quotas_are_no_names():
    quotas = {QuotaEntity(user=DEFAULT_NAME, client_id="<default>"): {"producer_byte_rate": 10.0}}
    (row,) = (await quotas_view(client(describe_quotas=quotas)))["quotas"]
    assert row["user"] == {"name": None, "default": True}
    assert row["client"] == {"name": "<default>", "default": False}
    assert row["address"] is None
