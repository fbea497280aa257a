"""The authorizer.

Super users, the default, decisions that are forgotten with the rules they come from, and its lines.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.audit.audit_log import LINES_PER_CLIENT, AuditEvent, AuditLog
from lowtide.broker.authorizer import standard_authorizer
from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import CLUSTER, Operation, ResourceType, topic
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer, parse_super_users
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.metadata import keys
from lowtide.metadata.acl_image import AclImage
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.records import AclRecord
from lowtide.metadata.unreadable_keys import Unreadable

ALICE: Any = SimpleNamespace(principal=KafkaPrincipal("User", "alice"), client_address="10.0.0.1")
ROOT: Any = SimpleNamespace(principal=KafkaPrincipal("User", "root"), client_address="10.0.0.1")
READ_T = AclRecord(2, "t", 3, "User:alice", "*", 3, 3)
DENY_ALL = AclRecord(2, "*", 3, "User:*", "*", 2, 2)


class Lines:
    """A log that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


def made(
    *acls: AclRecord,
    allow_if_no_acl: bool = False,
    now: list[int] | None = None,
    events: frozenset[AuditEvent] = frozenset({AuditEvent.DENIED}),
) -> tuple[StandardAuthorizer, Lines]:
    lines, clock = Lines(), now or [0]
    audit = AuditLog(lines, events, lambda: clock[0])
    authorizer = StandardAuthorizer(
        parse_super_users("User:root; User:other "), allow_if_no_acl=allow_if_no_acl, audit=audit
    )
    authorizer.use(rules(*acls))
    return authorizer, lines


def rules(*acls: AclRecord) -> dict[bytes, AclImage]:
    return {repr(acl).encode(): AclImage(acl, 1) for acl in acls}


def test_super_users_may_do_everything_whatever_the_rules_say() -> None:
    authorizer, _ = made(DENY_ALL)
    assert authorizer.authorize(ROOT, Operation.ALTER, CLUSTER)
    assert authorizer.authorize(ROOT, Operation.READ, topic("t"))
    assert authorizer.authorize_by_resource_type(ROOT, Operation.WRITE, ResourceType.TOPIC)
    assert not authorizer.authorize(ALICE, Operation.READ, topic("t"))
    assert not authorizer.authorize_by_resource_type(ALICE, Operation.WRITE, ResourceType.TOPIC)


@pytest.mark.parametrize("text", ["root", "User:", "User:a;b"])
def test_super_users_are_principals(text: str) -> None:
    with pytest.raises(ValueError, match="Type:name"):
        parse_super_users(text)


def test_what_no_rule_is_about_has_the_default() -> None:
    """With a rule of any principal, for any operation, the default is off for that resource."""
    bob = AclRecord(2, "t", 4, "User:bob", "10.9.9.9", Operation.ALTER, 3)
    authorizer, _ = made(bob, allow_if_no_acl=True)
    assert not authorizer.authorize(ALICE, Operation.READ, topic("tide"))
    assert authorizer.authorize(ALICE, Operation.READ, topic("u"))
    assert authorizer.authorize_by_resource_type(ALICE, Operation.READ, ResourceType.TOPIC)
    closed, _ = made(bob)
    assert not closed.authorize(ALICE, Operation.READ, topic("u"))


def test_decisions_are_those_of_the_newest_rules() -> None:
    authorizer, _ = made()
    assert not authorizer.authorize(ALICE, Operation.READ, topic("t"))
    old = MetadataImage()
    image = MetadataImage(acls=rules(READ_T))
    authorizer.on_image(old, image, ImageDelta())
    assert authorizer.authorize(ALICE, Operation.READ, topic("t"))
    assert authorizer.authorize(ALICE, Operation.DESCRIBE, topic("t"))
    authorizer.on_image(image, MetadataImage(acls=rules(READ_T, DENY_ALL)), ImageDelta())
    assert not authorizer.authorize(ALICE, Operation.READ, topic("t"))
    authorizer.on_image(image, MetadataImage(acls=rules(READ_T)), ImageDelta())
    assert authorizer.authorize(ALICE, Operation.READ, topic("t"))
    assert authorizer.index.count == 1


def test_a_decision_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made_by: list[Any] = []
    decide = standard_authorizer.decide
    monkeypatch.setattr(standard_authorizer, "decide", lambda *asked: made_by.append(asked) or decide(*asked))
    authorizer, _ = made(READ_T)
    for _ in range(3):
        assert authorizer.authorize(ALICE, Operation.READ, topic("t"))
    assert len(made_by) == 1
    assert not authorizer.authorize(
        SimpleNamespace(principal=ALICE.principal, client_address="10.0.0.2"), Operation.WRITE, topic("t")
    )
    assert len(made_by) == 2


def test_remembered_decisions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standard_authorizer, "DECISIONS_MAX", 10)
    authorizer, _ = made(READ_T)
    for number in range(100):
        authorizer.authorize(ALICE, Operation.READ, topic(f"t{number}"), Audit.NOTHING)
        assert len(authorizer._decisions) <= 10


def test_decisions_about_names_too_long_for_a_topic_are_not_remembered() -> None:
    """A client without any right may ask about names of 32 KiB: 20,000 of them would be 655 MB."""
    authorizer, _ = made(READ_T)
    for length, remembered in ((250, 0), (32_767, 0), (249, 1)):
        assert not authorizer.authorize(ALICE, Operation.READ, topic("u" * length))
        assert len(authorizer._decisions) == remembered


def test_denials_that_were_asked_for_are_logged_and_do_not_flood() -> None:
    now = [5_000]
    authorizer, log = made(READ_T, now=now)
    authorizer.authorize(ALICE, Operation.READ, topic("t"))
    authorizer.authorize(ALICE, Operation.WRITE, topic("t"), Audit.ALLOWED)
    assert log.lines == []
    for _ in range(LINES_PER_CLIENT + 5):
        authorizer.authorize(ALICE, Operation.WRITE, topic("t"))
    assert len(log.lines) == LINES_PER_CLIENT
    first = {
        "event": "operation denied",
        "principal": "User:alice",
        "host": "10.0.0.1",
        "operation": "WRITE",
        "resource": "TOPIC:t",
    }
    assert log.lines[0] == {**first, "client_id": None, "correlation_id": None}
    now[0] = 6_000
    authorizer.authorize(ALICE, Operation.WRITE, topic("x" * 30_000))
    assert len(log.lines[-1]["resource"]) < 300


def test_permissions_are_audited_where_that_is_wanted() -> None:
    """Then none is remembered for a connection either."""
    authorizer, log = made(READ_T, events=frozenset({AuditEvent.ALLOWED}))
    authorizer.authorize(ALICE, Operation.READ, topic("t"))
    authorizer.authorize(ALICE, Operation.READ, topic("t"), Audit.NOTHING)
    authorizer.authorize(ALICE, Operation.WRITE, topic("t"))
    assert [line["event"] for line in log.lines] == ["operation allowed"]
    assert authorizer.write_grants(ALICE) is None
    assert made(READ_T)[0].write_grants(ALICE) is not None


def test_while_a_rule_cannot_be_read_nobody_is_allowed_anything_but_super_users() -> None:
    """It may be a rule that denies. It is as before when it can be read again."""
    authorizer, _ = made(READ_T, allow_if_no_acl=True)
    known = rules(READ_T)
    whole = MetadataImage(1, acls=known)
    broken = MetadataImage(2, acls=known, unreadable={keys.ACLS + b"0" * 32: Unreadable(2, "broken")})
    kept = MetadataImage(3, acls=known, unreadable={keys.ACLS + b"0" * 32: Unreadable(2, "broken", keeps=True)})
    for image, allowed in ((whole, True), (broken, False), (kept, True), (broken, False), (whole, True)):
        authorizer.on_image(whole, image, ImageDelta())
        assert authorizer.authorize(ALICE, Operation.READ, topic("t")) is allowed
        assert authorizer.authorize(ALICE, Operation.READ, topic("other")) is allowed
        assert authorizer.authorize_by_resource_type(ALICE, Operation.READ, ResourceType.TOPIC) is allowed
        assert authorizer.authorize(ROOT, Operation.READ, topic("t"))
        assert authorizer.authorize_by_resource_type(ROOT, Operation.READ, ResourceType.TOPIC)
