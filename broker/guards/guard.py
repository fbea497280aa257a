"""Guards: they remove from a request what the client may not do, and add the refused rows to the answer.

Handlers behind a guard check no permissions. A broker without an authorizer has no guards. As in Kafka, permissions are
checked before existence and values, so that no client learns of a topic that it may not describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import replace

from lowtide.broker.authorizer.authorizer import Audit, Authorizer
from lowtide.broker.authorizer.resources import CLUSTER, Operation, Resource, ResourceType, group, topic
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.context import BrokerContext
from lowtide.broker.network.routing.routes import HandlerSpec, NoGuard
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import OPERATIONS_NOT_ASKED
from lowtide.protocol.types import TopicId
from lowtide.replication.refusal import Refusal

RowT = TypeVar("RowT")

Merge = Callable[[Any], Any]
"""Returns the client's answer from that of the handler, which it must not change: some answers are given again."""


class Asker(msgspec.Struct, frozen=True):
    """The client that sent a request, and what decides about its permissions."""

    authorizer: Authorizer
    context: RequestContext
    image: MetadataImage
    config: BrokerConfig

    def may(self, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH) -> bool:
        """Returns whether the client may perform an operation.

        `audit`: filters use ALLOWED, because the client did not name what they hide.
        """
        return self.authorizer.authorize(self.context, operation, resource, audit)

    def may_cluster(self, operation: Operation, audit: Audit = Audit.BOTH) -> bool:
        """Returns whether the client may perform an operation on the cluster.

        `audit`: ALLOWED if another permission would suffice too.
        """
        return self.authorizer.authorize(self.context, operation, CLUSTER, audit)

    def may_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Returns whether the client may perform an operation on any resource name of a type."""
        return self.authorizer.authorize_by_resource_type(self.context, operation, kind)

    def name_of(self, name: str, topic_id: TopicId, *, by_id: bool) -> str | None:
        """Returns the name of a topic that a request names by name or id; None for an unknown id."""
        return self.image.topic_names.get(topic_id) if by_id else name

    def split(
        self,
        operation: Operation,
        rows: Iterable[RowT],
        name_of: Callable[[RowT], str | None],
        audit: Audit = Audit.BOTH,
    ) -> tuple[list[RowT], list[RowT]]:
        """Returns the rows of a request on whose topics the client may perform an operation, and the others.

        A row without a name counts as allowed: the handler refuses it.
        """
        allowed: list[RowT] = []
        denied: list[RowT] = []
        for row in rows:
            name = name_of(row)
            (allowed if name is None or self.may(operation, topic(name), audit) else denied).append(row)
        return allowed, denied

    def split_ids(
        self, operation: Operation, resource_of: Callable[[str], Resource], ids: Iterable[str]
    ) -> tuple[list[str], list[str]]:
        """Returns the ids on which the client may perform an operation, and the others, each of these once."""
        wanted = list(ids)
        allowed = [each for each in wanted if self.may(operation, resource_of(each))]
        known = set(allowed)
        return allowed, list(dict.fromkeys(each for each in wanted if each not in known))

    def operations(self, resource: Resource, supported: int) -> int:
        """Returns those bits of `supported` operations that the client may perform (KIP-430)."""
        return sum(
            1 << operation
            for operation in Operation
            if supported >> operation & 1 and self.may(operation, resource, Audit.NOTHING)
        )

    def with_operations(self, row: Any, resource: Resource, supported: int) -> Any:
        """Returns a row of an answer with the operations that the client may perform, if it asked for them."""
        if row.authorized_operations == OPERATIONS_NOT_ASKED:
            return row
        return replace(row, authorized_operations=self.operations(resource, supported))


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a check: an `answer`, or the `request` for the handler and what `merge` makes of its answer."""

    request: Any = None
    merge: Merge | None = None
    answer: Any = None


Guard = Callable[[Any, Asker], Verdict]


class OwnGuard(msgspec.Struct, frozen=True):
    """A guard that wraps the whole handler, including its joint form."""

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
    """Returns the handler behind a guard."""

    def judge(request: Any, context: RequestContext) -> Verdict:
        if spec.forwarding is not None and context.forwarded:
            return Verdict(request)  # The broker that forwarded it has checked.
        return guard(request, Asker(broker.authorizer, context, broker.metadata.image, broker.config))

    return judged(spec, judge)


def judged(spec: HandlerSpec, judge: Callable[[Any, RequestContext], Verdict]) -> HandlerSpec:
    """Returns a handler that gets only the requests which `judge` does not answer."""
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


def with_rows(request: Any, field: str, rows: Sequence[Any]) -> Verdict:
    """Passes a request on. Adds the rows of what was denied to a field of its answer, unless that is an error."""

    def merge(answer: Any) -> Any:
        if getattr(answer, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return answer
        return replace(answer, **{field: [*getattr(answer, field), *rows]})

    return Verdict(request, merge if rows else None)


CLUSTER_DENIED: Final = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


def on_cluster(operation: Operation, refused: Callable[[Any, int, Refusal], Any]) -> Guard:
    """Returns a guard that requires an operation on the cluster.

    `refused` makes the answer to a request in a version that is refused as a whole, as for `Forwarding`.
    """

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may_cluster(operation):
            return Verdict(request)
        return Verdict(answer=refused(request, asker.context.api_version, CLUSTER_DENIED))

    return guard


def for_brokers(response: Callable[..., Any]) -> Guard:
    """Returns a guard that requires CLUSTER_ACTION, which brokers have. `response` is the type of the response."""
    return on_cluster(
        Operation.CLUSTER_ACTION, lambda _request, _version, refusal: response(error_code=refusal.error_code)
    )


def for_members(failed: Callable[[ErrorCode], Any]) -> Guard:
    """Returns a guard that requires READ on the group. `failed` makes the answer to a refused request."""

    def guard(request: Any, asker: Asker) -> Verdict:
        if asker.may(Operation.READ, group(request.group_id or "")):
            return Verdict(request)
        return Verdict(answer=failed(ErrorCode.GROUP_AUTHORIZATION_FAILED))

    return guard


def _merged(answer: Any, merge: Merge) -> Any:
    return answer if answer is None or answer is NO_ANSWER else merge(answer)
