"""Fetches of clients that may not read everything: READ on each topic.

What may not be read stays in a fetch session, and is refused each time, as in Kafka; so it is read as soon as it may be.
Source: Kafka's `KafkaApis.handleFetchRequest`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.broker.partitions.delayed.fetch_reader import FetchReader, FetchRules
from lowtide.broker.partitions.fetch_session import FetchTarget
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.partition import Partition


class GuardedFetchReader(FetchReader):
    """Reads for one client what it may read."""

    __slots__ = ("_may_read",)

    def __init__(self, may_read: Callable[[str], bool], *parts: Any) -> None:
        """`parts` as those of `FetchReader`."""
        super().__init__(*parts)
        self._may_read = may_read

    def find(self, target: FetchTarget, rules: FetchRules) -> Partition | ErrorCode:
        """An unknown topic id is reported as such; whether a name exists isn't reported without READ."""
        found = super().find(target, rules)
        if rules.is_follower or (found is ErrorCode.UNKNOWN_TOPIC_ID) or self._may_read(target.topic):
            return found
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
