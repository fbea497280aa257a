"""Wraps handlers, so that they count what their clients use and slow down those above a quota.

A client above its quota gets its answer at once, with the time that it should wait. Its connection executes nothing for
that time (KIP-219), so that clients that ignore it are slowed down, too.

| quota | counts | of |
|---|---|---|
| `producer_byte_rate` | record batches as they came | Produce |
| `consumer_byte_rate` | record batches as they are sent | Fetch by consumers, ShareFetch |
| `controller_mutation_rate` | partitions | topics created, grown and deleted: `mutation_quota` |
| `request_percentage` | percent of the event loop's time | all requests except those between brokers |

An answer to a consumer has at most what its quota allows in ten seconds. Kafka reads a larger answer and returns an
empty one instead; here the records are sent and counted, and the client waits. Sources: KIP-13, KIP-124, KIP-219,
KIP-599.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.partitions.fetch.fetch_handler import replica_of
from lowtide.broker.pending import NO_ANSWER, Pending
from lowtide.broker.promises import mapped
from lowtide.broker.quotas.client_quotas import ClientQuotas
from lowtide.broker.quotas.mutation_quota import add_refused, admit, costs_of
from lowtide.broker.quotas.quota_entity import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, REQUEST_PERCENTAGE
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.session import MetadataSession
from lowtide.protocol.api_keys import FIRST_OF_OURS, ApiKey
from lowtide.protocol.messages.fetch import FetchRequest, FetchResponse
from lowtide.protocol.messages.produce import ProduceRequest
from lowtide.protocol.messages.share_fetch import ShareFetchResponse
from lowtide.runtime.clock import Clock

ANSWER_S: Final = 10
"""The time whose quota one answer may use up: at least the samples that a rate spans."""


class Meter:
    """Counts what requests use, if any quota is set."""

    def __init__(
        self, quotas: ClientQuotas, clock: Clock, metadata: MetadataSession, default_partitions: Callable[[], int]
    ) -> None:
        """`default_partitions`: the partitions of a new topic whose creator names no number."""
        self._quotas = quotas
        self._clock = clock
        self._metadata = metadata
        self._default_partitions = default_partitions

    def metered(self, spec: HandlerSpec) -> HandlerSpec:
        """Returns a handler that counts, or the handler itself if no quota is set or its clients are brokers."""
        if not self._quotas.has_clients or spec.between_brokers or spec.key >= FIRST_OF_OURS:
            return spec
        changes: dict[str, Any] = {}
        if spec.handle is not None:
            changes["handle"] = self._at_once(spec, spec.handle)
        if spec.handle_later is not None:
            changes["handle_later"] = self._later(spec, spec.handle_later)
        return spec.wrapped(**changes)

    def _at_once(self, spec: HandlerSpec, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        def metered(request: Any, context: RequestContext) -> Any:
            if spec.key == ApiKey.FETCH and is_of_a_follower(request):
                return handle(request, context)
            began_ns, size_bytes = self._clock.monotonic_ns(), self._before(spec, request, context)
            answer = handle(request, context)
            spent_ns = self._clock.monotonic_ns() - began_ns
            if isinstance(answer, Pending):
                return mapped(answer, lambda given: self._after(spec, given, context, size_bytes, spent_ns))
            return self._after(spec, answer, context, size_bytes, spent_ns)

        return metered

    def _later(self, spec: HandlerSpec, handle: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        async def metered(request: Any, context: RequestContext) -> Any:
            if context.of_a_broker:
                return await handle(request, context)
            if spec.partition_changes is not None and self._metadata.is_controller:
                return await self._carry_out_part(spec, request, context, handle)
            answer = await handle(request, context)
            wait_ms = answer.throttle_time_ms if spec.partition_changes is not None else 0  # As the controller says.
            return self._after(spec, answer, context, 0, 0, wait_ms=wait_ms)

        return metered

    def change_partitions(self, context: RequestContext, count: int, *, force: bool = False) -> int:
        """Lets the client of a request change so many partitions, as described in `mutation_quota`."""
        user, client_id = context.principal.name, context.client_id or ""
        return self._quotas.change_partitions(user, client_id, count, self._clock.monotonic_ms(), force=force)

    async def _carry_out_part(
        self, spec: HandlerSpec, request: Any, context: RequestContext, handle: Callable[[Any, Any], Any]
    ) -> Any:
        """Carries out the changes that the client's quota of changed partitions admits.

        Only the controller counts them, for the clients of all brokers.
        """
        changes = spec.partition_changes
        assert changes is not None, spec.key
        costs = costs_of(changes, request, context.api_version, self._metadata.image, self._default_partitions())

        def take(count: int, force: bool) -> int:  # noqa: FBT001  as `admit` calls it
            return self.change_partitions(context, count, force=force)

        admitted = admit(changes, request, context.api_version, costs, take)
        answer = add_refused(changes, await handle(admitted.request, context), admitted.refused)
        return self._after(spec, answer, context, 0, 0, wait_ms=admitted.wait_ms)

    def _before(self, spec: HandlerSpec, request: Any, context: RequestContext) -> int:
        """Returns the bytes of a Produce request, and limits the size of a consumer's Fetch."""
        if spec.answer_bytes is not None:
            limit = self._quotas.limit(CONSUMER_BYTE_RATE, context.principal.name, context.client_id or "")
            if limit is not None:
                request.max_bytes = min(request.max_bytes, int(limit * ANSWER_S))
        return 0 if spec.request_bytes is None else spec.request_bytes(request)

    def _after(
        self,
        spec: HandlerSpec,
        answer: Any,
        context: RequestContext,
        size_bytes: int,
        spent_ns: int,
        *,
        wait_ms: int = 0,
    ) -> Any:
        """Counts what was used and slows the client down. Returns the answer with the time to wait."""
        throttle_ms = max(wait_ms, self._use(REQUEST_PERCENTAGE, context, spent_ns / 1e7))
        if spec.request_bytes is not None:
            throttle_ms = max(throttle_ms, self._use(PRODUCER_BYTE_RATE, context, size_bytes))
        if spec.answer_bytes is not None and answer is not None and answer is not NO_ANSWER:
            throttle_ms = max(throttle_ms, self._use(CONSUMER_BYTE_RATE, context, spec.answer_bytes(answer)))
        if throttle_ms == 0:
            return answer
        context.connection.mute(throttle_ms)
        if answer is None or answer is NO_ANSWER or "throttle_time_ms" not in answer.__struct_fields__:
            return answer
        return msgspec.structs.replace(answer, throttle_time_ms=max(answer.throttle_time_ms, throttle_ms))

    def _use(self, key: str, context: RequestContext, amount: float) -> int:
        return self._quotas.use(
            key, context.principal.name, context.client_id or "", amount, self._clock.monotonic_ms()
        )


def is_of_a_follower(request: FetchRequest) -> bool:
    """Returns whether a broker fetches for replication."""
    return replica_of(request)[0] >= 0


def produced_bytes(request: ProduceRequest) -> int:
    """Returns the bytes of the record batches in a request."""
    return sum(
        len(row.records) for topic in request.topic_data for row in topic.partition_data if row.records is not None
    )


def fetched_bytes(response: FetchResponse) -> int:
    """Returns the bytes of the record batches in an answer."""
    return sum(len(row.records) for topic in response.responses for row in topic.partitions if row.records is not None)


def share_fetched_bytes(answer: ShareFetchResponse) -> int:
    """Returns the bytes of the record batches in an answer to a member of a share group."""
    return sum(len(row.records) for topic in answer.responses for row in topic.partitions)
