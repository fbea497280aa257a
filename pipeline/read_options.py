"""The options of a read, checked: what is read, from where to where, and how.

    kafka.bootstrap.servers   required; further `kafka.*` keys are those of Kafka's clients
    subscribe | subscribePattern | assign                      exactly one
    startingTimestamp, startingOffsetsByTimestamp, startingOffsets     the first that is given counts
    endingTimestamp, endingOffsetsByTimestamp, endingOffsets           likewise, in batch only
    ...

Names, defaults and what is refused are those of Spark's KafkaSourceProvider, but for `kafka.isolation.level`, which is
`read_committed` unless said otherwise: records of aborted transactions were never meant to be read. `docs/pipeline.md`
explains each to users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.options import OptionError, Options
from lowtide.pipeline.ranges import Positions, positions_from_json
from lowtide.pipeline.tasks import FETCH_BYTES, FetchSettings
from lowtide.pipeline.trim_options import TrimOptions, trim_options
from lowtide.protocol.types import Offset, TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""In place of an offset, as in Spark's JSON."""

TAKEN_KEYS: Final = (
    "isolation.level",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "group.id",
)
"""Of `kafka.*`: what isn't the client's."""

STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
WITHOUT_EFFECT: Final = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "checkpointLocation", "path")
"""Accepted, since a query that is moved from Spark's source may have them, or Spark adds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """What is read; one of the three."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A topic's whole name has to match. Python's syntax of regular expressions."""
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics, if they are known by name."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({partition.topic for partition in self.partitions}))

    def selects(self, topic: str) -> bool:
        """Whether a topic is among those read."""
        names = self.names
        return topic in names if names is not None else re.fullmatch(self.pattern or "", topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where to begin, or to end: an offset or special place for all partitions, or for each its own, or a time."""

    place: Offset = EARLIEST
    """EARLIEST or LATEST, for all partitions, if nothing else is said."""
    offsets: Positions = field(default_factory=dict)
    """By partition; EARLIEST and LATEST are allowed."""
    timestamp: int | None = None
    """For all partitions, in milliseconds."""
    timestamps: Positions = field(default_factory=dict)
    """By partition, in milliseconds."""
    latest_without_match: bool = False
    """A partition without a record at or behind its timestamp: begin behind its last record, instead of failing."""

    @property
    def is_earliest(self) -> bool:
        """Whether it is the beginning of every partition, whichever there are."""
        return self.place == EARLIEST and not self.offsets and self.timestamp is None and not self.timestamps


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """All options of a read. Can be pickled."""

    client: ClientSettings
    subscription: TopicSelection
    starting: Bound
    ending: Bound
    fetch: FetchSettings
    trim: TrimOptions = field(default_factory=TrimOptions)
    partitions_min: int | None = None
    rows_per_partition_max: int | None = None
    offsets_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 900_000
    offset_attempts: int = 3
    offset_retry_ms: int = 1000


def read_options(given: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Check all options of a batch or of a stream. Errors: OptionError."""
    options = Options(given)
    client = options.client_settings(TAKEN_KEYS)
    subscription = _subscription(options)
    starting = _starting(options, LATEST if is_stream else EARLIEST)
    made = ReadOptions(
        client=client,
        subscription=subscription,
        starting=starting,
        trim=trim_options(options, is_stream=is_stream, starts_at_earliest=starting.is_earliest),
        ending=Bound(place=LATEST) if is_stream else _ending(options),
        fetch=_fetch(options),
        partitions_min=options.number("minPartitions", 1, 2**31 - 1),
        rows_per_partition_max=options.number("maxRecordsPerPartition", 1),
        offsets_per_trigger_max=options.number("maxOffsetsPerTrigger", 1),
        offsets_per_trigger_min=options.number("minOffsetsPerTrigger", 1),
        trigger_delay_max_ms=options.duration_ms("maxTriggerDelay", default=900_000),
        offset_attempts=options.number("fetchOffset.numRetries", 1, 1000, default=3),
        offset_retry_ms=options.number("fetchOffset.retryIntervalMs", 0, 600_000, default=1000),
    )
    for name in BATCH_ONLY if is_stream else STREAM_ONLY:
        if name in options:
            options.refuse(
                name, "a stream has no end" if is_stream else "it is for streams: a batch reads everything in one go"
            )
    low, high = made.offsets_per_trigger_min, made.offsets_per_trigger_max
    if low is not None and high is not None and low > high:
        options.refuse("minOffsetsPerTrigger", f"it is above maxOffsetsPerTrigger, which is {high}")
    options.check_all_known(WITHOUT_EFFECT)
    return made


def wants_headers(given: Mapping[str, str]) -> bool:
    """Whether the schema has a column of headers. Errors: OptionError."""
    return Options(given).flag("includeHeaders", default=False)


def _subscription(options: Options) -> TopicSelection:
    """Errors: OptionError, unless exactly one of the three is given."""
    names = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(names) != 1:
        raise OptionError(
            f"options {' and '.join(names)} exclude each other"
            if names
            else "one of subscribe, subscribePattern and assign must be given"
        )
    topics = options.text("subscribe")
    pattern = options.text("subscribePattern")
    partitions = options.json("assign", _assigned)
    if topics is not None:
        found = tuple(sorted({name.strip() for name in topics.split(",")} - {""}))
        return TopicSelection(topics=found) if found else options.refuse("subscribe", "it names no topic")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            options.refuse("subscribePattern", f"it is no regular expression: {error}")
        return TopicSelection(pattern=pattern) if pattern else options.refuse("subscribePattern", "it matches no topic")
    return TopicSelection(partitions=partitions) if partitions else options.refuse("assign", "it names no partition")


def _assigned(value: Any) -> tuple[TopicPartition, ...]:
    """From `{"topic": [0, 1]}`. Errors: ValueError."""
    expected = 'allowed is JSON such as {"topic": [0, 1]}'
    if not isinstance(value, dict):
        raise ValueError(expected)  # noqa: TRY004 reported as an option's error
    for topic, partitions in value.items():
        if (
            not topic
            or not isinstance(partitions, list)
            or not all(type(one) is int and 0 <= one < 2**31 for one in partitions)
        ):
            raise ValueError(expected)
    return tuple(
        sorted({TopicPartition(topic, partition) for topic, partitions in value.items() for partition in partitions})
    )


def _starting(options: Options, default: Offset) -> Bound:
    """Errors: OptionError."""
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
    bound = _bound(options, "starting", default)
    if default == EARLIEST and (bound.place == LATEST or LATEST in bound.offsets.values()):
        options.refuse("startingOffsets", "a batch can't begin at the latest offset, where nothing is left to read")
    return Bound(
        place=bound.place,
        offsets=bound.offsets,
        timestamp=bound.timestamp,
        timestamps=bound.timestamps,
        latest_without_match=strategy == "latest",
    )


def _ending(options: Options) -> Bound:
    """Errors: OptionError."""
    bound = _bound(options, "ending", LATEST)
    if bound.place == EARLIEST or EARLIEST in bound.offsets.values():
        options.refuse("endingOffsets", "a batch can't end at the earliest offset, before which there is nothing")
    return bound


def _bound(options: Options, side: str, default: Offset) -> Bound:
    """The first of the three options of a side that is given. Errors: OptionError, also for one that doesn't count."""
    timestamp = options.number(f"{side}Timestamp", 0)
    timestamps = options.json(f"{side}OffsetsByTimestamp", _timestamps)
    word = options.text(f"{side}Offsets")
    offsets: Positions = {}
    place = default
    if word is not None:
        if word.lower() in ("earliest", "latest"):
            place = EARLIEST if word.lower() == "earliest" else LATEST
        else:
            offsets = options.json(f"{side}Offsets", _offsets) or {}
    if timestamp is not None:
        return Bound(place=default, timestamp=timestamp)
    if timestamps is not None:
        return Bound(place=default, timestamps=timestamps)
    return Bound(place=place, offsets=offsets)


def _offsets(value: Any) -> Positions:
    """Errors: ValueError."""
    expected = 'allowed are earliest, latest and JSON such as {"topic": {"0": 23, "1": -2}}, where -2 is the earliest and -1 the latest'
    if not isinstance(value, dict) or not value:
        raise ValueError(expected)
    found = positions_from_json(value)
    if not found or any(offset < EARLIEST for offset in found.values()):
        raise ValueError(expected)
    return found


def _timestamps(value: Any) -> Positions:
    """Errors: ValueError."""
    expected = 'allowed is JSON such as {"topic": {"0": 1577836800000}}, with milliseconds since 1970'
    if not isinstance(value, dict) or not value:
        raise ValueError(expected)
    found = positions_from_json(value)
    if not found or any(timestamp < 0 for timestamp in found.values()):
        raise ValueError(expected)
    return found


def _fetch(options: Options) -> FetchSettings:
    """Errors: OptionError."""
    level = options.choice("kafka.isolation.level", ("read_committed", "read_uncommitted"))
    return FetchSettings(
        read_committed=level != "read_uncommitted",
        include_headers=options.flag("includeHeaders", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", 1, 1 << 30, default=FETCH_BYTES),
        fetch_wait_ms=options.number("kafka.fetch.max.wait.ms", 0, 60_000, default=500),
        poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", 1, default=120_000),
    )
