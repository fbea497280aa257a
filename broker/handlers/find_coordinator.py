"""FindCoordinator: v0-v6.

Behaviour: tells the broker that leads the partition of `__consumer_offsets` that a group belongs to, or of
`__transaction_state` for a transactional id, at the address of the client's listener. The topic is created when a
coordinator is first looked for; the answer then waits for it, where Kafka's has the client ask again. Keys that are
named twice are answered twice. Many keys are looked for in slices.

Version notes: v1 has key types, v4 many keys at once. v6 lets the states of share groups be looked for.

Errors: COORDINATOR_NOT_AVAILABLE while the partition has no leader, or this broker is to lead it and doesn't yet (some
clients give up at the NOT_COORDINATOR that would follow), or its leader has not the client's listener, or the topic
cannot be created; INVALID_REQUEST for a type that there isn't, and for a key that can't be a share partition's;
UNSUPPORTED_VERSION for share groups where they aren't served: clients give up then, instead of asking for ever.

KIPs: 98, 699, 932.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from typing import Final, cast

from lowtide.broker.coordinator.groups.group_coordinator import GroupCoordinator
from lowtide.broker.coordinator.runtime.offsets_topic import OffsetsTopic
from lowtide.broker.coordinator.share_state.share_coordinator import is_share_key
from lowtide.broker.coordinator.transactions.transaction_coordinator import TransactionCoordinator
from lowtide.broker.guards import groups as guards
from lowtide.broker.network.endpoints import endpoint_of, local_endpoint
from lowtide.broker.network.routing.request_parts import Cut
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.pending import Pending, answer_of, promised
from lowtide.broker.request_context import Client, RequestContext
from lowtide.metadata.broker_image import BrokerImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from lowtide.replication.partition import Partition

GROUP, TRANSACTION, SHARE = 0, 1, 2
_SHARE_SINCE = 6
_SINCE = {GROUP: 0, TRANSACTION: 1, SHARE: _SHARE_SINCE}
_MANY_KEYS_SINCE = 4

CUT: Final = Cut(levels=(("coordinator_keys", "coordinators"),))


def handler(
    groups: GroupCoordinator, transactions: TransactionCoordinator, shares: OffsetsTopic | None = None
) -> HandlerSpec:
    """Returns the handler; `shares` is the topic of the states of share groups, if they are on."""
    topics = {GROUP: groups.topic, TRANSACTION: transactions.topic}
    if shares is not None:
        topics[SHARE] = shares

    def coordinator(topic: OffsetsTopic, key: str) -> BrokerImage | ErrorCode:
        found, replicas = topic.coordinator_of(key), groups.broker.replicas
        if isinstance(found, ErrorCode) or found.broker_id != replicas.broker_id:
            return found
        partition = replicas.find(topic.name, topic.partition_of(key))
        return (
            found if isinstance(partition, Partition) and partition.is_leader else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

    def find(key: str, key_type: int, version: int, client: Client) -> Coordinator:
        topic = topics.get(key_type)
        if topic is None and key_type == SHARE and version >= _SHARE_SINCE:
            return _failed(key, ErrorCode.UNSUPPORTED_VERSION, "share groups are not served")
        if topic is None or version < _SINCE[key_type]:
            return _failed(key, ErrorCode.INVALID_REQUEST, f"there is no key type {key_type} in version {version}")
        if key_type == SHARE and not is_share_key(key):
            return _failed(
                key,
                ErrorCode.INVALID_REQUEST,
                f"{key} isn't a group, a topic id and a partition with colons between them",
            )
        found = coordinator(topic, key)
        if isinstance(found, ErrorCode):
            return _failed(key, found, f"{key} has no coordinator now")
        listener = endpoint_of(found, client.listener_name)
        if listener is None:
            return _failed(
                key,
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"broker {found.broker_id} has no listener {client.listener_name}",
            )
        local = (
            local_endpoint(groups.broker.config, client)
            if found.broker_id == groups.broker.replicas.broker_id
            else None
        )
        host, port = local or (listener.host, listener.port)
        return Coordinator(key=key, node_id=found.broker_id, host=host, port=port, error_code=ErrorCode.NONE)

    def steps(
        request: FindCoordinatorRequest, context: RequestContext
    ) -> Generator[None, None, FindCoordinatorResponse]:
        version, client = context.api_version, context.connection
        if version >= _MANY_KEYS_SINCE:
            rows = []
            for key in request.coordinator_keys:
                rows.append(find(key, request.key_type, version, client))
                yield
            return FindCoordinatorResponse(coordinators=rows)
        row = find(request.key, request.key_type, version, client)
        return FindCoordinatorResponse(
            error_code=row.error_code,
            error_message=row.error_message,
            node_id=row.node_id,
            host=row.host,
            port=row.port,
        )

    def answer(
        request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Pending[FindCoordinatorResponse]:
        return groups.broker.turns.answer(steps(request, context))

    async def answer_later(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse | None:
        await topics[request.key_type].create()
        found = answer(request, context)
        if isinstance(found, Pending):
            return await answer_of(cast("Pending[FindCoordinatorResponse | None]", found), for_client=True)
        return found

    def handle(
        request: FindCoordinatorRequest, context: RequestContext
    ) -> FindCoordinatorResponse | Pending[FindCoordinatorResponse]:
        version = context.api_version
        asks_for_any = version < _MANY_KEYS_SINCE or request.coordinator_keys
        topic = topics.get(request.key_type)
        if topic is not None and version >= _SINCE[request.key_type] and asks_for_any and not topic.exists:
            name = f"FIND_COORDINATOR of {context.connection.peer}"
            return promised(partial(answer_later, request, context), groups.broker.tasks.spawn, name=name)
        return answer(request, context)

    return HandlerSpec(key=ApiKey.FIND_COORDINATOR, guard=guards.find_coordinator, handle=handle, cut=CUT)


def _failed(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)
