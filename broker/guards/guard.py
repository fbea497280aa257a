"""Guards: they remove from a request what the client may not do, and add the refused rows to the answer.

So a handler needn't know that anything can be forbidden, and a broker where nothing is has its handlers as they are,
without a question.
A guard stands where Kafka asks: before existence and values are looked at, so that no client learns of a topic that it
may not describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from lowtide.broker.authorizer.authorizer import Audit, Authorizer
from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, topic
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.routing.routes import HandlerSpec, NoGuard
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.types import TopicId

RowT = TypeVar("RowT")

Merge = Callable[[Any], Any]
"""From a handler's answer to the one that is given. Leaves the handler's as it is, for some are given again."""


class Asker(msgspec.Struct, frozen=True):
    """Who asks, and of which cluster."""

    authorizer: Authorizer
    context: RequestContext
    image: MetadataImage
    config: BrokerConfig

    def may(self, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH) -> bool:
        """Whether the client may do that.

        `audit`: a filter asks with ALLOWED, for nothing that it hides was asked for.
        """
        return self.authorizer.authorize(self.context, operation, resource, audit)

    def may_cluster(self, operation: Operation, audit: Audit = Audit.BOTH) -> bool:
        """Whether the client may do that to the cluster. `audit`: ALLOWED where another permission would do too."""
        return self.authorizer.authorize(self.context, operation, CLUSTER, audit)

    def may_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether the client may do that to any resource of a type, whether or not there is one now."""
        return self.authorizer.authorize_by_resource_type(self.context, operation, kind)

    def name_of(self, name: str, topic_id: TopicId, *, by_id: bool) -> str | None:
        """The name of a topic that is meant by its name or its id; None for an unknown id."""
        return self.image.topic_names.get(topic_id) if by_id else name

    def split(
        self,
        operation: Operation,
        rows: Iterable[RowT],
        name_of: Callable[[RowT], str | None],
        audit: Audit = Audit.BOTH,
    ) -> tuple[list[RowT], list[RowT]]:
        """Rows of a request whose topics the client may do that to, and the others.

        A row without a name is left to the handler.
        """
        allowed: list[RowT] = []
        denied: list[RowT] = []
        for row in rows:
            name = name_of(row)
            (allowed if name is None or self.may(operation, topic(name), audit) else denied).append(row)
        return allowed, denied

    def operations(self, resource: Resource, supported: int) -> int:
        """Of a bit field of operations those that the client may do (KIP-430)."""
        return sum(
            1 << operation
            for operation in Operation
            if supported >> operation & 1 and self.may(operation, resource, Audit.NOTHING)
        )


class Verdict(msgspec.Struct, frozen=True):
    """What becomes of a request: it is answered by the guard, or passed on, with what is to be done to the answer."""

    request: Any = None
    merge: Merge | None = None
    answer: Any = None


Guard = Callable[[Any, Asker], Verdict]


class OwnGuard(msgspec.Struct, frozen=True):
    """A guard that wraps the handler itself, with the joint form."""

    wrap: Callable[[HandlerSpec, BrokerContext], HandlerSpec]


FOR_EVERYONE: Final = NoGuard("needs no permission")
CHECKS_ITSELF: Final = NoGuard("permissions decide what the handler does, so it checks them itself")


def behind_guard(spec: HandlerSpec, broker: BrokerContext) -> HandlerSpec:
    """Returns the handler behind the guard that it declares; unchanged if the broker authorizes everything."""
    guard = spec.guard
    if broker.authorizer.allows_all or isinstance(guard, NoGuard):
        return spec
    return guard.wrap(spec, broker) if isinstance(guard, OwnGuard) else guarded(spec, guard, broker)


def guarded(spec: HandlerSpec, guard: Guard, broker: BrokerContext) -> HandlerSpec:
    """A handler behind a guard."""

    def judge(request: Any, context: RequestContext) -> Verdict:
        if spec.forwarding is not None and context.forwarded:
            return Verdict(request)  # The broker that forwarded it has checked.
        return guard(request, Asker(broker.authorizer, context, broker.metadata.image, broker.config))

    handle, handle_later = spec.handle, spec.handle_later
    if handle is not None:

        def at_once(request: Any, context: RequestContext) -> Any:
            verdict = judge(request, context)
            if verdict.answer is not None:
                return verdict.answer
            answer = handle(verdict.request, context)
            if verdict.merge is None:
                return answer
            return (
                mapped(answer, partial(_merged, merge=verdict.merge))
                if isinstance(answer, Pending)
                else _merged(answer, verdict.merge)
            )

        return spec.wrapped(handle=at_once)
    assert handle_later is not None, spec.key

    async def later(request: Any, context: RequestContext) -> Any:
        verdict = judge(request, context)
        if verdict.answer is not None:
            return verdict.answer
        answer = await handle_later(verdict.request, context)
        return answer if verdict.merge is None else _merged(answer, verdict.merge)

    return spec.wrapped(handle_later=later)


def with_rows(request: Any, merge: Merge, denied: Sequence[Any]) -> Verdict:
    """Pass a request on; its answer needs `merge` only if something was denied."""
    return Verdict(request, merge if denied else None)


def _merged(answer: Any, merge: Merge) -> Any:
    return answer if answer is None or answer is NO_ANSWER else merge(answer)
