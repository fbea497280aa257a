"""The guard of Produce, which is asked more often than all others: what a connection may write is remembered beside it.

Only permissions are: a request that names anything else goes the long way (`topics.produce`), and so does one with a
transactional id. What is remembered is forgotten by the authorizer, in place, when a rule changes. The long way costs a
third of a small Produce (bench_acls).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics
from lowtide.broker.guards.guard import Asker, Verdict, guarded
from lowtide.broker.network.answer_errors import AnswerErrors
from lowtide.broker.network.routes import GroupPath, HandlerSpec, QuickPath, RunPath
from lowtide.broker.request_context import Client, RequestContext
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.messages.produce import ProduceRequest, ProduceResponse
from lowtide.protocol.native import ProduceGroup as Group
from lowtide.protocol.native import ProduceRun as Run
from lowtide.protocol.native import SmallProduce as Asked


def guarded_produce(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """The handler of Produce behind its guard."""
    errors = AnswerErrors(ApiKey.PRODUCE, API[ApiKey.PRODUCE].max_version, broker.replicas.traffic.errors)

    def judge(request: ProduceRequest, asker: Asker) -> Verdict:
        verdict = topics.produce(request, asker)
        if isinstance(verdict.answer, ProduceResponse):
            errors.note(verdict.answer)
        elif verdict.merge is not None:
            errors.note(verdict.merge(ProduceResponse(responses=[])))  # The rows that the handler doesn't see.
        return verdict

    behind_guard = guarded(spec, judge, broker)
    handle, the_long_way = spec.handle, behind_guard.handle
    assert handle is not None
    assert the_long_way is not None

    def at_once(request: ProduceRequest, context: RequestContext) -> Any:
        connection = context.connection
        grants = connection.write_grants
        if grants is not None and request.transactional_id is None and grants.principal is connection.principal:
            for row in request.topic_data:
                if (row.name or row.topic_id) not in grants:
                    break
            else:
                return handle(request, context)
        _learn(request, context, broker)
        return the_long_way(request, context)

    return spec.wrapped(handle=at_once, quick=None if spec.quick is None else _guarded_quickly(spec.quick))


def _guarded_quickly(quick: QuickPath) -> QuickPath:
    """The quick path for topics that the connection is known to be allowed to write to."""
    run, group, handle = quick.run, quick.group, _permitted(quick.handle)

    def handle_plain(asked: Asked, buffer: Any, client: Client) -> Any:
        return (
            handle(asked, buffer, client) if asked[10] is None else None
        )  # A transactional id needs a permission of its own.

    return QuickPath(
        quick.read,
        handle_plain,
        None if run is None else RunPath(run.read, _permitted(run.handle)),
        None if group is None else GroupPath(group.read, _all_permitted(group.handle)),
    )


def _may_write(client: Client, topic_or_id: str | bytes) -> bool:
    grants = client.write_grants
    return grants is not None and grants.principal is client.principal and topic_or_id in grants


def _permitted(handle: Callable[[Any, Any, Client], Any]) -> Callable[[Any, Any, Client], Any]:
    def handle_permitted(asked: Asked | Run, buffer: Any, client: Client) -> Any:
        grants = client.write_grants  # As `_may_write`, without a call: nearly all requests come by.
        if grants is None or grants.principal is not client.principal or asked[4] not in grants:
            return None
        return handle(asked, buffer, client)

    return handle_permitted


def _all_permitted(
    handle: Callable[[Any, Any, list[Client]], list[Any] | None],
) -> Callable[[Any, Any, list[Client]], list[Any] | None]:
    def handle_permitted(asked: Group, buffer: Any, clients: list[Client]) -> list[Any] | None:
        return handle(asked, buffer, clients) if all(_may_write(client, asked[4]) for client in clients) else None

    return handle_permitted


def _learn(request: ProduceRequest, context: RequestContext, broker: BrokerContext) -> None:
    """Remember which topics of a request its connection may write to. Without a log line: the guard asks again."""
    grants = context.connection.write_grants = broker.authorizer.write_grants(context)
    if grants is None:
        return
    names = broker.metadata.image.topic_names
    for row in request.topic_data:
        name = row.name or names.get(row.topic_id)
        if name and broker.authorizer.authorize(context, Operation.WRITE, topic(name), Audit.NOTHING):
            grants.remember(row.name or row.topic_id)
