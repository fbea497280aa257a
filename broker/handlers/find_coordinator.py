"""FindCoordinator: v0-v6.

Behaviour: returns the broker that leads the partition of a group in `__consumer_offsets`, or of a transactional id in
`__transaction_state`, with its address for the client's listener. The topic is created when a coordinator is first
requested; the response waits for it, while in Kafka the client retries. A key that is listed twice is answered twice.
Many keys are looked up in slices.

Version notes: v1 has key types, v4 many keys at once. v6 has the states of share groups.

Errors: COORDINATOR_NOT_AVAILABLE while the partition has no leader, while this broker is to lead it and doesn't yet
(some clients give up at the NOT_COORDINATOR that would follow), if its leader doesn't have the client's listener, or if
the topic cannot be created; INVALID_REQUEST for an unknown type, and for a key that can't be a share partition's;
UNSUPPORTED_VERSION for share groups if they are disabled, because clients then give up instead of retrying forever.

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
from lowtide.broker.partitions.replica_manager import ReplicaManager
from lowtide.broker.pending import Answer, Pending
from lowtide.broker.promises import answer_of, promised
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
    """Returns the handler. `shares` is the topic with the states of share groups, if they are enabled."""
    topics = {GROUP: groups.topic, TRANSACTION: transactions.topic}
    if shares is not None:
        topics[SHARE] = shares

    def find(key: str, key_type: int, version: int, client: Client) -> Coordinator:
        topic = topics.get(key_type)
        if topic is None and key_type == SHARE and version >= _SHARE_SINCE:
            return _failed(key, ErrorCode.UNSUPPORTED_VERSION, "share groups are not served")
        if topic is None or version < _SINCE[key_type]:
            return _failed(key, ErrorCode.INVALID_REQUEST, f"there is no key type {key_type} in version {version}")
        if key_type == SHARE and not is_share_key(key):
            return _failed(key, ErrorCode.INVALID_REQUEST, "the key does not have the form group:topic-id:partition")
        found = _coordinator_of(topic, key, groups.broker.replicas)
        if isinstance(found, ErrorCode):
            return _failed(key, found, "the key has no coordinator now")
        listener = endpoint_of(found, client.listener_name)
        if listener is None:
            text = f"broker {found.broker_id} has no listener {client.listener_name}"
            return _failed(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, text)
        is_here = found.broker_id == groups.broker.replicas.broker_id
        local = local_endpoint(groups.broker.config, client) if is_here else None
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

    def answer(request: FindCoordinatorRequest, context: RequestContext) -> Answer[FindCoordinatorResponse]:
        return groups.broker.turns.answer(steps(request, context))

    async def answer_later(request: FindCoordinatorRequest, context: RequestContext) -> FindCoordinatorResponse | None:
        await topics[request.key_type].create()
        found = answer(request, context)
        if isinstance(found, Pending):
            return await answer_of(cast("Pending[FindCoordinatorResponse | None]", found), for_client=True)
        return found

    def handle(request: FindCoordinatorRequest, context: RequestContext) -> Answer[FindCoordinatorResponse]:
        version = context.api_version
        asks_for_any = version < _MANY_KEYS_SINCE or request.coordinator_keys
        topic = topics.get(request.key_type)
        if topic is not None and version >= _SINCE[request.key_type] and asks_for_any and not topic.exists:
            name = f"FIND_COORDINATOR of {context.connection.peer}"
            return promised(partial(answer_later, request, context), groups.broker.tasks.spawn, name=name)
        return answer(request, context)

    return HandlerSpec(key=ApiKey.FIND_COORDINATOR, guard=guards.find_coordinator, handle=handle, cut=CUT)


def _coordinator_of(topic: OffsetsTopic, key: str, replicas: ReplicaManager) -> BrokerImage | ErrorCode:
    """Returns the coordinator of a key. If that is this broker, its log must be there."""
    found = topic.coordinator_of(key)
    if isinstance(found, ErrorCode) or found.broker_id != replicas.broker_id:
        return found
    partition = replicas.find(topic.name, topic.partition_of(key))
    return found if isinstance(partition, Partition) and partition.is_leader else ErrorCode.COORDINATOR_NOT_AVAILABLE


def _failed(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=message)
