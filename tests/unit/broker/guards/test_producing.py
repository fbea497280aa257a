"""Which permissions of a connection to write are remembered, and when they are forgotten."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.broker.audit.audit_log import NO_AUDIT
from lowtide.broker.authorizer.authorizer import WriteGrants
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer
from lowtide.broker.guards import topics
from lowtide.broker.guards.producing import guarded_produce
from lowtide.broker.network.routing.routes import JointForm
from lowtide.broker.request_context import RequestContext
from lowtide.broker.security.principal import KafkaPrincipal
from lowtide.metadata.acl_image import AclImage
from lowtide.metadata.records import AclRecord
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.topic_traffic import TrafficTable
from tests.unit.broker.declared import spec_of

from .asking import ID, SECRET_ID, TOPIC, image

TRANSACTIONAL = bytes(16) + b"\x02" + bytes(5) + b"\x10" + bytes(40)
ALICE, BOB = KafkaPrincipal("User", "alice"), KafkaPrincipal("User", "bob")


def allows(name: str, principal: str = "User:alice", permission: int = 3) -> AclRecord:
    return AclRecord(2, name, 3, principal, "*", Operation.WRITE, permission)


class Guarded:
    """The guarded handler over some rules, and a connection of alice."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *rules: AclRecord) -> None:
        self.authorizer = StandardAuthorizer(frozenset(), allow_if_no_acl=False, audit=NO_AUDIT)
        self.use(*rules)
        self.guard_calls = 0
        self.traffic = TrafficTable()
        replicas, metadata = SimpleNamespace(traffic=self.traffic), SimpleNamespace(image=image())
        broker: Any = SimpleNamespace(authorizer=self.authorizer, metadata=metadata, replicas=replicas, config=None)
        self.connection: Any = SimpleNamespace(principal=ALICE, client_address="10.0.0.1", write_grants=None, closed=[])
        self.connection.close = self.connection.closed.append
        asked = topics.produce

        def counted(*args: Any) -> Any:
            self.guard_calls += 1
            return asked(*args)

        monkeypatch.setattr(topics, "produce", counted)
        joint = JointForm(lambda *_: None, lambda group, _buffer, _clients: [group])
        spec = spec_of(ApiKey.PRODUCE, handle=lambda *_: ProduceResponse(responses=[]), joint=joint)
        guarded = guarded_produce(spec, broker)
        self.handle: Any = guarded.handle
        assert guarded.joint is not None
        self.answer_jointly = guarded.joint.answer

    def use(self, *rules: AclRecord) -> None:
        self.authorizer.use({repr(rule).encode(): AclImage(rule, 1) for rule in rules})

    def is_joint(self, topic: str | bytes) -> bool:
        """Whether the joint form takes requests, alone and with another client that may write."""
        other: Any = SimpleNamespace(principal=BOB, write_grants=WriteGrants(BOB))
        other.write_grants.remember(topic)

        def takes(clients: list[Any], transactional_id: str | None = None) -> bool:
            group = SimpleNamespace(topic=topic, transactional_id=transactional_id)
            return self.answer_jointly(group, memoryview(b""), clients) == [group]

        is_taken = takes([self.connection])
        assert not takes([self.connection], "x")
        assert takes([other, self.connection]) == takes([self.connection, other]) == is_taken
        return is_taken

    def errors(self, *names: str | bytes, records: bytes = b"", transactional_id: str | None = None) -> list[int]:
        """What is refused; and whether the guard was asked is counted."""
        rows = [
            TopicProduceData(
                name=name if isinstance(name, str) else "",
                topic_id=ZERO_TOPIC_ID if isinstance(name, str) else name,
                partition_data=[PartitionProduceData(index=0, records=records or None)],
            )
            for name in names
        ]
        version = 12 if isinstance(names[0], str) else 13
        request = ProduceRequest(transactional_id=transactional_id, acks=1, timeout_ms=1, topic_data=rows)
        answer = self.handle(request, RequestContext(version, "c", self.connection))
        return [row.error_code for each in answer.responses for row in each.partition_responses]


def test_what_may_be_written_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, allows("t"))
    for _ in range(3):
        assert guarded.errors("t") == []
    assert guarded.guard_calls == 1
    for _ in range(2):
        assert guarded.errors(ID) == []
    assert guarded.guard_calls == 2
    for count in (3, 4):
        assert guarded.errors("t", "secret") == [TOPIC]
        assert guarded.guard_calls == count
    assert guarded.errors(SECRET_ID) == [TOPIC]
    assert guarded.traffic.errors == {("Produce", TOPIC): 3}


def test_a_changed_rule_is_asked_again_on_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, allows("t"))
    assert guarded.errors("t") == []
    first = guarded.connection
    guarded.connection = SimpleNamespace(principal=ALICE, client_address="10.0.0.1", write_grants=None)
    assert guarded.errors("t") == []
    guarded.use(allows("t"), allows("t", "User:*", permission=2))
    assert guarded.errors("t") == [TOPIC]
    guarded.connection = first
    assert guarded.errors("t") == [TOPIC]
    guarded.use(allows("t"))
    assert guarded.errors("t") == []


def test_another_principal_on_the_connection_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, allows("t"))
    assert guarded.errors("t") == []
    guarded.connection.principal = BOB
    assert guarded.errors("t") == [TOPIC]
    guarded.connection.principal = ALICE
    assert guarded.errors("t") == []


def test_the_joint_form_takes_what_may_be_written_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, allows("t"))
    assert not guarded.is_joint("t"), "the guard was not asked yet"
    assert guarded.errors("t") == guarded.errors(ID) == []
    assert guarded.is_joint("t")
    assert guarded.is_joint(ID)
    assert not guarded.is_joint("secret")
    assert not guarded.is_joint(SECRET_ID)
    guarded.connection.principal = BOB
    assert not guarded.is_joint("t")
    guarded.connection.principal = ALICE
    assert guarded.is_joint("t")
    guarded.use(allows("t"), allows("t", "User:*", permission=2))
    assert not guarded.is_joint("t")
    assert guarded.errors("t") == [TOPIC]
    assert not guarded.is_joint("t")


def test_transactions_always_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = Guarded(monkeypatch, allows("t"))
    assert guarded.errors("t") == []
    assert guarded.errors("t", records=TRANSACTIONAL, transactional_id="x") == [53]
    assert guarded.guard_calls == 2


def test_topics_and_requesters_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are dropped are emptied: a connection that still has them asks again."""
    monkeypatch.setattr("lowtide.broker.authorizer.authorizer.GRANTS_MAX", 2)
    monkeypatch.setattr("lowtide.broker.authorizer.standard_authorizer.REQUESTERS_MAX", 2)
    guarded = Guarded(monkeypatch, allows("*"))
    for name in ("a", "b", "c"):
        assert guarded.errors(name) == []
    assert len(guarded.connection.write_grants) == 1
    kept = guarded.connection
    for number in range(2):
        guarded.connection = SimpleNamespace(principal=ALICE, client_address=f"10.0.1.{number}", write_grants=None)
        assert guarded.errors("a") == []
    assert kept.write_grants == set()
    guarded.use()
    assert guarded.errors("a") == [TOPIC]
