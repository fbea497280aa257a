"""Creates the internal topics of streams applications after heartbeats, and remembers why some could not be created.

A topic that could not be created is tried again when its error is forgotten. Guards: at most `IN_PROGRESS_MAX`
creations run at once, and `ERRORS_MAX` errors are kept.

Source: Kafka's `DefaultAutoTopicCreationManager.createStreamsInternalTopics`, `ExpiringErrorCache`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from lowtide.broker.administration.envelopes import Origin
from lowtide.broker.administration.topic_administrator import AUTOMATIC_CREATION_TIMEOUT_MS, TopicAdministrator
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.new_topics import TopicSpec
from lowtide.replication.refusal import Refusal

IN_PROGRESS_MAX: Final = 200
ERRORS_MAX: Final = 1_000
"""Source: `DefaultAutoTopicCreationManager.topicErrorCacheCapacity`."""

InternalTopic: TypeAlias = tuple[TopicSpec, Sequence[tuple[str, str | None]]]
"""A topic and its configuration."""


class StreamsTopics:
    """The internal topics that this broker creates for streams groups."""

    def __init__(self, topics: TopicAdministrator) -> None:
        self._topics = topics
        self._creating: set[str] = set()
        self._errors: dict[str, tuple[str, int]] = {}
        """Topic → message, and when it is forgotten (monotonic)."""

    def create(self, wanted: Iterable[InternalTopic], asker: RequestContext, remember_ms: int) -> None:
        """Starts the creation of topics, except for those that are being created or have failed recently."""
        broker = self._topics.broker
        for spec, configs in wanted:
            if spec.name in self._creating or self.errors((spec.name,)):
                continue
            if len(self._creating) >= IN_PROGRESS_MAX:
                return
            self._creating.add(spec.name)
            work = self._create(spec, configs, Origin.of(asker), remember_ms)
            broker.tasks.spawn(work, name=f"create topic {spec.name}")

    def errors(self, names: Iterable[str]) -> dict[str, str]:
        """Returns why topics could not be created recently, by name."""
        now_ms = self._now_ms()
        found = ((name, self._errors.get(name)) for name in names)
        return {name: known[0] for name, known in found if known is not None and known[1] > now_ms}

    async def _create(
        self, spec: TopicSpec, configs: Sequence[tuple[str, str | None]], origin: Origin, remember_ms: int
    ) -> None:
        try:
            outcome = await self._topics.create(spec, configs, AUTOMATIC_CREATION_TIMEOUT_MS, origin)
            if isinstance(outcome, Refusal) and outcome.error_code != ErrorCode.TOPIC_ALREADY_EXISTS:
                self._remember(spec.name, outcome.message or outcome.error_code.name, remember_ms)
        finally:
            self._creating.discard(spec.name)

    def _remember(self, name: str, message: str, remember_ms: int) -> None:
        now_ms = self._now_ms()
        self._errors.pop(name, None)
        if len(self._errors) >= ERRORS_MAX:
            self._errors = {each: row for each, row in self._errors.items() if row[1] > now_ms}
        if len(self._errors) >= ERRORS_MAX:
            del self._errors[next(iter(self._errors))]
        self._errors[name] = message, now_ms + remember_ms
        if self._topics.limits.may_log():
            log = self._topics.broker.log
            log.warning("an internal topic of a streams group was not created", topic=name, reason=message)

    def _now_ms(self) -> int:
        return self._topics.broker.clock.monotonic_ms()
