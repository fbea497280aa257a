"""Forecasts the next retention pass of a partition with other settings of its topic. Deletes nothing.

The plan of a pass decides (`storage/log/retention/retention_plan.py`), so a forecast can't differ from it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Final

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.config.topic_config import TopicConfigFault, log_config, validate_topic_configs
from lowtide.broker.context import BrokerContext
from lowtide.broker.coordinator.groups.consumed import NOT_CONSUMED
from lowtide.broker.retention.consumption import Doubt, Outcome, consumption_query
from lowtide.broker.retention.log_retention import offsets_of
from lowtide.protocol.messages.describe_segments import (
    DescribeSegmentsTopic,
    ForecastDeletion,
    ProposedConfig,
    RetentionForecast,
)
from lowtide.replication.partition import Partition
from lowtide.storage.log.log_values import LogConfig
from lowtide.storage.log.retention.retention_plan import RetentionPlan, SegmentTimes, retention_steps
from lowtide.storage.log.segments.segment import Segment

PROPOSED_MAX: Final = 100
"""Proposed settings of a topic."""


def proposed_rules(broker: BrokerContext, topics: Iterable[DescribeSegmentsTopic]) -> dict[str, LogConfig | None]:
    """Returns the rules of logs by topic, for topics with proposed settings; None if these are invalid.

    Unknown topics are left out.
    """
    image = broker.metadata.image
    return {
        topic.name: _rules(broker.config, found.configs, topic.proposed)
        for topic in topics
        if topic.proposed and (found := image.topics.get(topic.name)) is not None
    }


def _rules(config: BrokerConfig, overrides: Mapping[str, str], proposed: Sequence[ProposedConfig]) -> LogConfig | None:
    """Returns the rules of a topic's logs if it had the proposed settings besides its own; None if they are invalid."""
    wanted: dict[str, str | None] = dict(overrides)
    for each in proposed:
        if each.value is None:
            wanted.pop(each.name, None)
        else:
            wanted[each.name] = each.value
    kept = validate_topic_configs(config, wanted)
    return None if isinstance(kept, TopicConfigFault) else log_config(config, kept)


def forecast(
    partition: Partition, rules: LogConfig, consumed: Outcome | Doubt, times: SegmentTimes[Segment], now_ms: int
) -> Generator[None, None, RetentionForecast]:
    """Returns what a pass would delete now with `rules`, and with the present ones. Errors: StorageError."""
    plans = []
    for each in (rules, partition.log.config):
        query = consumption_query(partition, each)
        end = NOT_CONSUMED if isinstance(consumed, Doubt) else consumed.get(query, NOT_CONSUMED)
        offsets = offsets_of(partition, end.offset if end.is_known else None)
        plans.append((yield from retention_steps(tuple(partition.log.segments), offsets, each, times, now_ms)))
    return RetentionForecast(proposed=_deletions(plans[0]), present=_deletions(plans[1]))


def _deletions(plan: RetentionPlan) -> list[ForecastDeletion]:
    return [
        ForecastDeletion(
            reason=each.reason.value,
            segment_count=each.segment_count,
            size_bytes=each.size_bytes,
            end_offset=each.end_offset,
        )
        for each in plan.deletions
    ]
