"""Shared by the tests of guards: authorizers that allow a few things, and a request through a guard and back."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import msgspec

from lowtide.broker.authorizer.authorizer import Audit, Requester
from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType
from lowtide.broker.guards import topics as of_topics
from lowtide.broker.guards.guard import Guard, OwnGuard, guarded
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.security.principal import ANONYMOUS
from lowtide.metadata.config_image import ConfigImage
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.compiler import codec_for
from lowtide.protocol.errors import ErrorCode
from tests.unit.broker.declared import SPECS, spec_of

ID, SECRET_ID = b"1" * 16, b"2" * 16
TOPIC, GROUP, WHOLE = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)


def guard_of(key: ApiKey) -> Guard:
    guard = SPECS[key].guard
    return of_topics.produce if isinstance(guard, OwnGuard) else guard


class Only:
    """Allows exactly these; records the questions."""

    allows_all = False
    audits_allowed = False

    def __init__(self, *allowed: tuple[Operation, Resource]) -> None:
        self.allowed = allowed
        self.asked: list[tuple[Operation, Resource]] = []

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        assert requester.principal == ANONYMOUS
        self.asked.append((operation, resource))
        return (operation, resource) in self.allowed

    def write_grants(self, requester: Requester) -> None:
        return None

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        return any(allowed == operation and resource.type == kind for allowed, resource in self.allowed)


class Everything(Only):
    """Allows all, one by one."""

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        return True


def image(*more: str) -> MetadataImage:
    """Topics `t` and `secret`, and perhaps more, with one partition each."""
    ids = {"t": ID, "secret": SECRET_ID, **{name: bytes([index]) * 16 for index, name in enumerate(more, 100)}}
    topics = {
        name: TopicImage(name, identity, (PartitionImage((0,), (0,), (1,), 0, 0, 0, 1),), {}, 1)
        for name, identity in ids.items()
    }
    return MetadataImage(revision=1, topics=topics, topic_names={identity: name for name, identity in ids.items()})


def ask(
    authorizer: Only,
    request: Any,
    response: Any,
    version: int | None = None,
    *,
    pending: bool = False,
    creates: bool = True,
    client_id: str = "c",
    forwarded: bool = False,
    topics: tuple[str, ...] = (),
    set_on_broker: Mapping[str, str] | None = None,
    set_on_topic: Mapping[str, str] | None = None,
) -> tuple[Any, Any, Any]:
    """The request to the handler, the response to the client (decoded from bytes), and the context."""
    (key,) = [each for each in API if API[each].request is type(request)]
    passed: list[Any] = []

    def handle(asked: Any, _context: Any) -> Any:
        passed.append(asked)
        if not pending:
            return response
        promised: Pending[Any] = Pending()
        promised.complete(response)
        return promised

    version = API[key].max_version if version is None else version
    known = image(*topics)
    if set_on_broker is not None:
        known = msgspec.structs.replace(known, broker_configs={"1": ConfigImage(set_on_broker, 1)})
    if set_on_topic is not None:
        changed = msgspec.structs.replace(known.topics["t"], configs=set_on_topic)
        known = msgspec.structs.replace(known, topics={**known.topics, "t": changed})
    broker: Any = SimpleNamespace(
        authorizer=authorizer,
        metadata=SimpleNamespace(image=known),
        config=SimpleNamespace(auto_create_topics_enable=creates, node_id=1),
    )
    context: Any = SimpleNamespace(
        api_version=version, principal=ANONYMOUS, client_id=client_id, forwarded=forwarded, closed=[]
    )
    context.close_connection = context.closed.append
    spec = guarded(spec_of(key, handle=handle), guard_of(key), broker)
    assert spec.handle is not None
    told = spec.handle(request, context)
    if isinstance(told, Pending):
        found: list[Any] = []
        told.listen(found.append)
        (told,) = found
    if told is not None and told is not NO_ANSWER:
        codec = codec_for(type(told), version)
        body = bytes(codec.encode(told))
        told = codec.decode(body, 0, len(body))
    return (passed[0] if passed else None), told, context
