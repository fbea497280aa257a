"""Reads and checks the options of a read: the topics, the offsets, and how tasks fetch.

    kafka.bootstrap.servers   required; further `kafka.*` keys are those of Kafka's clients
    subscribe | subscribePattern | assign                      exactly one
    startingTimestamp, startingOffsetsByTimestamp, startingOffsets     the first that is given counts
    endingTimestamp, endingOffsetsByTimestamp, endingOffsets           likewise, in batch only
    ...

Names, defaults and refused values are those of Spark's KafkaSourceProvider, except the default of
`kafka.isolation.level`: `read_committed`. `docs/pipeline.md` explains each option to users.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from lowtide.admin.settings import ClientSettings
from lowtide.pipeline.options import OptionError, Options
from lowtide.pipeline.ranges import Positions, positions_from_json
from lowtide.pipeline.tasks import FETCH_BYTES, FetchSettings
from lowtide.pipeline.trim_options import TrimOptions, trim_options
from lowtide.protocol.types import Offset, TopicPartition

EARLIEST: Final = -2
LATEST: Final = -1
"""Special offsets, as in Spark's JSON."""

_PLACES: Final = {"earliest": EARLIEST, "latest": LATEST}
_OFFSETS: Final = (
    'earliest, latest, or JSON such as {"topic": {"0": 23, "1": -2}}, where -2 is the earliest and -1 the latest'
)
_TIMESTAMPS: Final = 'JSON such as {"topic": {"0": 1577836800000}}, in milliseconds since 1970'

TAKEN_KEYS: Final = (
    "isolation.level",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "fetch.max.bytes",
    "group.id",
)
"""Keys of `kafka.*` that are not the client's."""

STREAM_ONLY: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
WITHOUT_EFFECT: Final = ("groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "checkpointLocation", "path")
"""Accepted, because a query for Spark's own source may have them, or because Spark adds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSelection:
    """The topics or partitions to read. Exactly one field is given."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    """A regular expression of Python, which must match the whole name of a topic."""
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def names(self) -> tuple[str, ...] | None:
        """The topics, if they are known by name."""
        if self.pattern is not None:
            return None
        return self.topics or tuple(sorted({partition.topic for partition in self.partitions}))

    def selects(self, topic: str) -> bool:
        """Returns whether the query reads a topic."""
        names = self.names
        return topic in names if names is not None else re.fullmatch(self.pattern or "", topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Where to begin or to end: offsets, special offsets or times, for all partitions or for each."""

    place: Offset = EARLIEST
    """EARLIEST or LATEST, for all partitions, if no other field is given."""
    offsets: Positions = field(default_factory=dict)
    """Offsets by partition; EARLIEST and LATEST are allowed."""
    timestamp: int | None = None
    """One timestamp for all partitions, in milliseconds."""
    timestamps: Positions = field(default_factory=dict)
    """Timestamps by partition, in milliseconds."""
    latest_without_match: bool = False
    """Whether a partition without a record at or after its timestamp begins at its end, instead of failing."""

    @property
    def is_earliest(self) -> bool:
        """Whether it is the beginning of all partitions."""
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
    """Reads all options of a batch or of a stream. Errors: OptionError."""
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
            in_batch = "it works in streams only: a batch query reads everything at once"
            options.refuse(name, "a stream has no end" if is_stream else in_batch)
    low, high = made.offsets_per_trigger_min, made.offsets_per_trigger_max
    if low is not None and high is not None and low > high:
        options.refuse("minOffsetsPerTrigger", f"it must not be more than maxOffsetsPerTrigger, which is {high}")
    options.check_all_known(WITHOUT_EFFECT)
    return made


def wants_headers(given: Mapping[str, str]) -> bool:
    """Returns whether the schema has a column of headers. Errors: OptionError."""
    return Options(given).flag("includeHeaders", default=False)


def _subscription(options: Options) -> TopicSelection:
    """Reads the subscription. Errors: OptionError, unless exactly one of the three is given."""
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
            options.refuse("subscribePattern", f"it is not a valid regular expression: {error}")
        return TopicSelection(pattern=pattern) if pattern else options.refuse("subscribePattern", "it matches no topic")
    return TopicSelection(partitions=partitions) if partitions else options.refuse("assign", "it names no partition")


def _assigned(value: Any) -> tuple[TopicPartition, ...]:
    """Reads `{"topic": [0, 1]}`. Errors: ValueError."""
    if not isinstance(value, dict) or not all(topic and _are_partitions(numbers) for topic, numbers in value.items()):
        raise ValueError('it must be JSON such as {"topic": [0, 1]}')
    return tuple(sorted({TopicPartition(topic, number) for topic, numbers in value.items() for number in numbers}))


def _are_partitions(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and 0 <= one < 2**31 for one in value)


def _starting(options: Options, default: Offset) -> Bound:
    """Reads the starting bound. Errors: OptionError."""
    strategy = options.choice("startingOffsetsByTimestampStrategy", ("error", "latest"))
    bound = replace(_bound(options, "starting", default), latest_without_match=strategy == "latest")
    if default == EARLIEST and (bound.place == LATEST or LATEST in bound.offsets.values()):
        options.refuse(
            "startingOffsets",
            "a batch query must not begin at the latest offset, because nothing is left to read there",
        )
    return bound


def _ending(options: Options) -> Bound:
    """Reads the ending bound. Errors: OptionError."""
    bound = _bound(options, "ending", LATEST)
    if bound.place == EARLIEST or EARLIEST in bound.offsets.values():
        options.refuse(
            "endingOffsets", "a batch query must not end at the earliest offset, because no record is before it"
        )
    return bound


def _bound(options: Options, side: str, default: Offset) -> Bound:
    """Returns the first given option of a side. Errors: OptionError, also for those after it."""
    timestamp = options.number(f"{side}Timestamp", 0)
    timestamps = options.json(f"{side}OffsetsByTimestamp", lambda value: _positions(value, 0, _TIMESTAMPS))
    word = options.text(f"{side}Offsets")
    place = default if word is None else _PLACES.get(word.lower())
    offsets: Positions = {}
    if place is None:
        offsets = options.json(f"{side}Offsets", lambda value: _positions(value, EARLIEST, _OFFSETS)) or {}
    if timestamp is not None:
        return Bound(place=default, timestamp=timestamp)
    if timestamps is not None:
        return Bound(place=default, timestamps=timestamps)
    return Bound(place=default if place is None else place, offsets=offsets)


def _positions(value: Any, low: int, expected: str) -> Positions:
    """Reads numbers by topic and partition, none below `low`. Errors: ValueError, which says what is `expected`."""
    found = positions_from_json(value) if isinstance(value, dict) else {}
    if not found or min(found.values()) < low:
        raise ValueError(f"it must be {expected}")
    return found


def _fetch(options: Options) -> FetchSettings:
    """Reads the options of fetches. Errors: OptionError."""
    level = options.choice("kafka.isolation.level", ("read_committed", "read_uncommitted"))
    return FetchSettings(
        read_committed=level != "read_uncommitted",
        include_headers=options.flag("includeHeaders", default=False),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        fetch_bytes=options.number("kafka.max.partition.fetch.bytes", 1, 1 << 30, default=FETCH_BYTES),
        fetch_wait_ms=options.number("kafka.fetch.max.wait.ms", 0, 60_000, default=500),
        poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", 1, default=120_000),
    )
