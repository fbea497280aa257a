"""Finds, on the driver, the partitions and the offsets that a query reads.

Source: Spark's KafkaOffsetReaderAdmin (the meaning of each option, and its errors).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from lowtide.pipeline.cluster import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    BlockingCluster,
    MissingTopicsError,
)
from lowtide.pipeline.leaders import Topic
from lowtide.pipeline.options import OptionError
from lowtide.pipeline.ranges import Positions, ReadRange, split
from lowtide.pipeline.read_options import EARLIEST, LATEST, Bound, ReadOptions
from lowtide.pipeline.tasks import DataLossError, PlannedRange
from lowtide.protocol.types import ZERO_TOPIC_ID, TopicId, TopicPartition

log = logging.getLogger(__name__)

NEW_TOPIC_MS: Final = 5000
"""How long a missing topic is requested again: it may be new."""

_PAUSE_S: Final = 0.2

_SPECIAL: Final = {EARLIEST: EARLIEST_TIMESTAMP, LATEST: LATEST_TIMESTAMP}


class ReadTarget(NamedTuple):
    """The partitions that a query reads."""

    partitions: tuple[TopicPartition, ...]
    """Sorted."""
    topic_ids: dict[str, TopicId]


class Planner:
    """Plans the tasks of a query. Each call asks the cluster."""

    def __init__(self, cluster: BlockingCluster, options: ReadOptions) -> None:
        self.cluster = cluster
        self._options = options

    def select(self) -> ReadTarget:
        """Returns the partitions that the query reads now. Errors: MissingTopicsError, ClusterError, OptionError."""
        subscription = self._options.subscription
        by_pattern = subscription.names is None
        deadline_ms, missing_ms = self.cluster.deadline(), self.cluster.deadline(NEW_TOPIC_MS)
        while True:
            try:
                topics = self.cluster.find_topics(subscription.names, deadline_ms)
                break
            except MissingTopicsError:
                if self.cluster.deadline(0) >= missing_ms:
                    raise
                time.sleep(_PAUSE_S)
        # A query may trim the topics of its pattern, so a pattern never selects internal ones.
        chosen = {
            name: topic
            for name, topic in topics.items()
            if subscription.selects(name) and not (by_pattern and topic.is_internal)
        }
        partitions = subscription.partitions or tuple(
            TopicPartition(name, one) for name, topic in chosen.items() for one in topic.leaders
        )
        for partition in subscription.partitions:
            if partition.partition not in chosen[partition.topic].leaders:
                raise OptionError(
                    f"option assign names {partition}, but {partition.topic} has {_count(chosen[partition.topic])}"
                )
        return ReadTarget(tuple(sorted(partitions)), {name: topic.topic_id for name, topic in chosen.items()})

    def earliest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Returns the log starts of partitions. Errors: ClusterError."""
        return self._at(dict.fromkeys(partitions, EARLIEST_TIMESTAMP))

    def latest(self, partitions: Iterable[TopicPartition]) -> Positions:
        """Returns the ends of partitions (exclusive); with `read_committed` the last stable offsets.

        Errors: ClusterError.
        """
        return self._at(dict.fromkeys(partitions, LATEST_TIMESTAMP))

    def resolve(self, bound: Bound, partitions: tuple[TopicPartition, ...], side: str) -> Positions:
        """Returns the offsets that a bound means now. `side` is `starting` or `ending`, for errors.

        Errors: OptionError if it lacks a partition, or if no record reaches a starting timestamp; ClusterError.
        """
        if bound.timestamp is not None:
            return self._by_time(bound, dict.fromkeys(partitions, bound.timestamp), side)
        if bound.timestamps:
            _check_complete(bound.timestamps, partitions, f"{side}OffsetsByTimestamp")
            return self._by_time(bound, {partition: bound.timestamps[partition] for partition in partitions}, side)
        if not bound.offsets:
            return self._at(dict.fromkeys(partitions, _SPECIAL[bound.place]))
        _check_complete(bound.offsets, partitions, f"{side}Offsets")
        chosen = {partition: bound.offsets[partition] for partition in partitions}
        special = {partition: _SPECIAL[offset] for partition, offset in chosen.items() if offset in _SPECIAL}
        return chosen | self._at(special)

    def plan(
        self, start: Mapping[TopicPartition, int], until: Mapping[TopicPartition, int], ids: Mapping[str, TopicId]
    ) -> list[PlannedRange]:
        """Returns the tasks that read from `start` to `until` (exclusive).

        Errors: DataLossError if an end lies before its start.
        """
        ranges = [ReadRange(partition, start[partition], end) for partition, end in until.items() if partition in start]
        for one in ranges:
            if one.size < 0:
                self.on_lost(f"{one.partition} was to be read from offset {one.start} on, but ends at {one.until}")
        pieces = split(ranges, self._options.partitions_min, self._options.rows_per_partition_max)
        return [PlannedRange(one, ids.get(one.partition.topic, ZERO_TOPIC_ID)) for one in pieces]

    def on_lost(self, message: str) -> None:
        """Reports that records were lost before the query read them.

        Errors: DataLossError, unless `failOnDataLoss` is false.
        """
        if self._options.fetch.fail_on_data_loss:
            message += ". With the option failOnDataLoss=false the query continues without them"
            raise DataLossError(message)
        log.warning("%s; the query continues, because failOnDataLoss is false", message)

    def _at(self, timestamps: Mapping[TopicPartition, int]) -> Positions:
        """Returns the offsets at timestamps. Errors: ClusterError."""
        if not timestamps:
            return {}
        found = self.cluster.list_offsets(timestamps, read_committed=self._options.fetch.read_committed)
        return {partition: one.offset for partition, one in found.items()}

    def _by_time(self, bound: Bound, timestamps: Positions, side: str) -> Positions:
        """Returns the offsets of timestamps. Errors: OptionError, ClusterError."""
        found = self._at(timestamps)
        without = sorted(partition for partition, offset in found.items() if offset < 0)
        if without and side == "starting" and not bound.latest_without_match:
            raise OptionError(
                f"{without[0]} has no record at or after {timestamps[without[0]]} (milliseconds since 1970), where "
                "the query should begin. With the option startingOffsetsByTimestampStrategy=latest it is read from its "
                "end"
            )
        return found | self.latest(without)


def _check_complete(given: Mapping[TopicPartition, int], partitions: tuple[TopicPartition, ...], option: str) -> None:
    """Checks that the option names exactly the existing partitions. Errors: OptionError."""
    missing, unknown = sorted(set(partitions) - set(given)), sorted(set(given) - set(partitions))
    if missing or unknown:
        reason = f"{missing[0]} is missing" if missing else f"{unknown[0]} is not read"
        raise OptionError(f"option {option} must name each partition that is read, and no other: {reason}")


def _count(topic: Topic) -> str:
    return f"{len(topic.leaders)} partition{'s' if len(topic.leaders) != 1 else ''}"
