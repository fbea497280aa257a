"""`lowtide acls` against a broker with an authorizer, and the methods of the admin client that it calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lowtide import LowtideCluster
from lowtide.admin.acls import Acl, AclFilter, AclOperation, AclPattern, AclPermission, AclResourceType
from lowtide.admin.blocking import BlockingAdminClient
from lowtide.admin.errors import AdminError, BrokerAnsweredError
from lowtide.cli.acls import operations_of, principal_of, resource_of, shown_resource
from lowtide.cli.outcome import CommandError

from .command_lines import answer, run

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def closed() -> Iterator[str]:
    """A broker with an authorizer, which this test administers."""
    config = {"authorizer.class.name": STANDARD, "super.users": "User:ANONYMOUS;User:root"}
    with LowtideCluster(config=config) as cluster:
        yield cluster.bootstrap


def test_rules_are_made_listed_explained_and_removed(closed: str) -> None:
    assert (
        run("acls", "allow", "alice", "read,describe-configs", "topic:flights-*", bootstrap=closed).stdout.count(
            "created"
        )
        == 2
    )
    run("acls", "deny", "*", "read", "topic:flights-secret", "--host", "10.0.0.1", bootstrap=closed)
    listed = answer("acls", "list", bootstrap=closed)["acls"]
    assert [
        (each["permission"], each["principal"], each["operation"], each["resource"], each["host"]) for each in listed
    ] == [
        ("allow", "User:alice", "read", "topic:flights-*", "*"),
        ("allow", "User:alice", "describe_configs", "topic:flights-*", "*"),
        ("deny", "User:*", "read", "topic:flights-secret", "10.0.0.1"),
    ]
    assert len(answer("acls", "list", "--resource", "topic:flights-2", bootstrap=closed)["acls"]) == 2
    assert len(answer("acls", "list", "--user", "*", bootstrap=closed)["acls"]) == 1

    def explained(*words: str) -> str:
        return run("acls", "explain", *words, bootstrap=closed).stdout.strip()

    assert explained("alice", "read", "topic:flights-1") == "allowed: allow User:alice READ on topic flights-…"
    assert explained("alice", "describe", "topic:flights-1").startswith("allowed: allow User:alice READ")
    assert explained("alice", "read", "topic:flights-secret", "--host", "10.0.0.1") == (
        "denied: deny User:* READ from 10.0.0.1 on topic flights-secret"
    )
    assert explained("bob", "write", "topic:other") == "denied: no rule allows it"
    assert explained("root", "alter", "cluster") == "allowed: User:root is in super.users, which no rule limits"
    told = answer("acls", "explain", "alice", "read", "topic:flights-1", bootstrap=closed)
    assert (told["allowed"], told["rule"]["name"]) == (True, "flights-")
    removed = answer("acls", "remove", "alice", "topic:flights-*", "--operation", "read", "--yes", bootstrap=closed)
    assert [each["operation"] for each in removed["acls"]] == ["read"]
    run("acls", "remove", "alice", "topic:flights-*", bootstrap=closed, code=4)
    run("acls", "remove", "alice", "topic:flights-*", "--yes", bootstrap=closed)
    run("acls", "remove", "*", "topic:flights-secret", "--yes", bootstrap=closed)
    assert answer("acls", "list", bootstrap=closed)["acls"] == []


def test_a_rule_that_cannot_be_is_refused_by_the_broker(closed: str) -> None:
    with BlockingAdminClient(closed) as admin:
        good = Acl(
            AclResourceType.GROUP, "g", AclPattern.LITERAL, "User:a", "*", AclOperation.READ, AclPermission.ALLOW
        )
        results = admin.create_acls([good, good._replace(operation=AclOperation.ANY)])
        assert [error is None for error in results.values()] == [True, False]
        assert admin.describe_acls(AclFilter.exactly(good)) == [good]
        assert admin.delete_acls([AclFilter.exactly(good), AclFilter(AclResourceType.TOPIC)]) == {
            AclFilter.exactly(good): [good],
            AclFilter(AclResourceType.TOPIC): [],
        }


def test_without_an_authorizer_the_client_learns_it(lowtide: object) -> None:
    with BlockingAdminClient(lowtide.bootstrap) as admin:  # type: ignore[attr-defined]
        with pytest.raises(BrokerAnsweredError, match="SECURITY_DISABLED"):
            admin.describe_acls()
        rule = Acl(
            AclResourceType.GROUP, "g", AclPattern.LITERAL, "User:a", "*", AclOperation.READ, AclPermission.ALLOW
        )
        assert isinstance(admin.create_acls([rule])[rule], AdminError)


@pytest.mark.parametrize("words", ["flights", "topic:", "cluster:mine", "stream:x", ":x", ""])
def test_what_is_no_resource_is_refused(words: str) -> None:
    with pytest.raises(CommandError, match="is not a resource"):
        resource_of(words)


@pytest.mark.parametrize(
    "words",
    [
        "topic:flights",
        "topic:flights-*",
        "topic:*",
        "group:a:b",
        "cluster",
        "transactional-id:x",
        "user:User:x",
        "token:1",
    ],
)
def test_resources_are_shown_as_they_are_written(words: str) -> None:
    kind, name, pattern = resource_of(words)
    assert shown_resource(Acl(kind, name, pattern, "User:a", "*", AclOperation.READ, AclPermission.ALLOW)) == words


def test_users_and_operations() -> None:
    assert [principal_of(each) for each in ("alice", "User:alice", "*", "Group:x")] == [
        "User:alice",
        "User:alice",
        "User:*",
        "Group:x",
    ]
    assert operations_of("read, IDEMPOTENT-WRITE,all") == [
        AclOperation.READ,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALL,
    ]
    for wrong in ("any", "", "fly"):
        with pytest.raises(CommandError, match="is not an operation"):
            operations_of(wrong)
    with pytest.raises(CommandError, match="is not a user"):
        principal_of("User:")
