"""The guard of Produce, which is asked more often than all others: what a connection may write is remembered beside it.

Only permissions are: a request that names anything else goes the long way (`topics.produce`), and so does one with a
transactional id. What is remembered is forgotten by the authorizer, in place, when a rule changes. The long way costs a
third of a small Produce (bench_acls).
"""

from __future__ import annotations

from typing import Any

from lowtide.broker.authorizer.authorizer import Audit
from lowtide.broker.authorizer.resources import Operation, topic
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import topics
from lowtide.broker.guards.guard import Asker, Verdict, guarded
from lowtide.broker.network.routing.answer_errors import counting_errors
from lowtide.broker.network.routing.routes import HandlerSpec, JointForm
from lowtide.broker.partitions.produce.joint_produce import ProduceGroup
from lowtide.broker.request_context import Client, RequestContext
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.messages.produce import ProduceRequest, ProduceResponse


def guarded_produce(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """Returns the handler of Produce behind its guard."""
    errors, version = broker.replicas.traffic.errors, API[ApiKey.PRODUCE].max_version
    count = counting_errors(ApiKey.PRODUCE, version, errors, lambda *_: None)

    def judge(request: ProduceRequest, asker: Asker) -> Verdict:
        verdict = topics.produce(request, asker)
        if isinstance(verdict.answer, ProduceResponse):
            count(0, verdict.answer)
        elif verdict.merge is not None:
            count(0, verdict.merge(ProduceResponse(responses=[])))  # The rows that the handler doesn't see.
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

    return spec.wrapped(handle=at_once, joint=None if spec.joint is None else _guarded(spec.joint))


def _guarded(joint: JointForm) -> JointForm:
    """Returns the joint form for topics that each connection is known to be allowed to write to."""

    def answer(group: ProduceGroup, buffer: Any, clients: list[Client]) -> list[Any] | None:
        if group.transactional_id is not None:
            return None  # It needs a permission of its own.
        for client in clients:
            grants = client.write_grants
            if grants is None or grants.principal is not client.principal or group.topic not in grants:
                return None
        return joint.answer(group, buffer, clients)

    return JointForm(joint.read, answer)


def _learn(request: ProduceRequest, context: RequestContext, broker: BrokerContext) -> None:
    """Notes which topics of a request its connection may write to. Nothing is logged: the guard asks again."""
    grants = context.connection.write_grants = broker.authorizer.write_grants(context)
    if grants is None:
        return
    names = broker.metadata.image.topic_names
    for row in request.topic_data:
        name = row.name or names.get(row.topic_id)
        if name and broker.authorizer.authorize(context, Operation.WRITE, topic(name), Audit.NOTHING):
            grants.remember(row.name or row.topic_id)
