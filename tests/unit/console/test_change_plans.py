"""Plans of changes: what they say, and what is refused because it has changed since."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lowtide.admin.cluster_view import PartitionDescription, TopicDescription
from lowtide.admin.configs import ConfigEntry
from lowtide.admin.errors import AdminError, BrokerAnsweredError, DeadlineExceededError
from lowtide.admin.observation import PartitionSegments
from lowtide.admin.producing import WrittenRecords
from lowtide.admin.topics import NewTopic
from lowtide.console import produce, topic_changes, topic_settings
from lowtide.console.answers import RefusedError
from lowtide.protocol.config_values import ConfigSource
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_retention import RetainedPartition
from lowtide.protocol.messages.describe_segments import ForecastDeletion, RetentionForecast, SegmentsOfPartition
from lowtide.protocol.types import TopicPartition

ID, OTHER_ID = b"1" * 16, b"2" * 16


def topic(partitions: int = 1, topic_id: Any = ID, replicas: tuple[int, ...] = (1,)) -> TopicDescription:
    rows = {
        number: PartitionDescription(partition=number, leader=1, leader_epoch=0, replicas=replicas, isr=replicas)
        for number in range(partitions)
    }
    return TopicDescription(name="t", topic_id=topic_id, is_internal=False, partitions=rows)


def entry(key: str, value: str | None, *, is_set: bool = True, synonyms: Any = ()) -> ConfigEntry:
    source = ConfigSource.TOPIC if is_set else ConfigSource.DEFAULT
    return ConfigEntry(
        key=key, value=value, source=source, is_read_only=False, is_sensitive=False, synonyms=tuple(synonyms)
    )


class Client:
    """A cluster of one topic; answers are attributes."""

    def __init__(self, **answers: Any) -> None:
        self.topic = topic()
        self.entries: dict[str, ConfigEntry] = {}
        self.others: dict[str, ConfigEntry] = {}
        self.written: Any = None
        self.altered: list[Any] = []
        self.__dict__ |= answers

    async def describe_topics(self, names: list[str]) -> dict[str, Any]:
        return dict.fromkeys(names, self.topic)

    async def list_topics(self, *, include_internal: bool) -> dict[str, Any]:
        assert include_internal
        return {"other": None, "t": None}

    async def describe_configs(self, resources: Any, **_: Any) -> dict[Any, Any]:
        return {each: self.entries if each.name == "t" else self.others for each in resources}

    async def alter_configs(self, changes: Any, *, validate_only: bool) -> dict[Any, Any]:
        self.altered.append((next(iter(changes.values())), validate_only))
        return dict.fromkeys(changes)

    async def create_partitions(self, counts: dict[str, int], **_: Any) -> dict[str, None]:
        self.altered.append(counts)
        return dict.fromkeys(counts)

    async def produce_records(self, records: Any) -> Any:
        if isinstance(self.written, Exception):
            raise self.written
        return {key: self.written[key.partition] for key in records}


def run(awaitable: Any) -> Any:
    return asyncio.run(awaitable)


def refused(awaitable: Any) -> str:
    with pytest.raises(RefusedError) as error:
        run(awaitable)
    return error.value.sentence


# ---------------------------------------------------------------------- settings
def rehearsed(client: Client, **changes: str | None) -> topic_settings.RehearsedSettings:
    session: Any = SimpleNamespace(client=client, work=SimpleNamespace(speaks_lowtide=False))
    given = {"topic": "t", "settings": {key.replace("_", "."): value for key, value in changes.items()}}
    plan: topic_settings.RehearsedSettings = run(topic_settings.rehearse_settings(session, given))
    return plan


def test_a_default_comes_from_a_synonym_of_the_same_unit_or_from_another_topic():
    client = Client(
        entries={
            "retention.ms": entry(
                "retention.ms", "5", synonyms=[("retention.ms", "5", 1), ("log.retention.hours", "168", 5)]
            ),
            "segment.bytes": entry(
                "segment.bytes", "9", synonyms=[("segment.bytes", "9", 1), ("log.segment.bytes", "77", 4)]
            ),
            "flush.ms": entry("flush.ms", "8", is_set=False),
        },
        others={"retention.ms": entry("retention.ms", "604800000", is_set=False)},
    )
    rows = {row["key"]: row for row in run(topic_settings.settings_page(client, "t"))["settings"]}
    assert {key: row["default"] for key, row in rows.items()} == {
        "retention.ms": "604800000",
        "segment.bytes": "77",
        "flush.ms": "8",
    }


def test_an_unknown_default_is_not_made_up():
    client = Client(entries={"k": entry("k", "5")}, others={"k": entry("k", "6")})
    (row,) = run(topic_settings.settings_page(client, "t"))["settings"]
    assert (row["value"], row["default"], row["source"]) == ("5", None, "this topic")
    assert topic_settings.settings_value(rehearsed(client, k=None))["changes"] == [
        {"key": "k", "old": "5", "new": None, "restores_default": True}
    ]


@pytest.mark.parametrize(
    ("now", "words"),
    [
        ({"k": entry("k", "6")}, "k is 6 now, and was 5 in the rehearsal"),
        ({"k": entry("k", "5", is_set=False)}, "k is 5 (default) now, and was 5 in the rehearsal"),
        ({}, "k is empty (default) now"),
    ],
)
def test_a_setting_that_has_changed_is_left_alone(now: dict[str, ConfigEntry], words: str):
    client = Client(entries={"k": entry("k", "5")})
    plan = rehearsed(client, k="7")
    client.entries = now
    assert words in refused(topic_settings.carry_out_settings(client, plan))
    assert [validate_only for _, validate_only in client.altered] == [True]


def test_settings_of_a_topic_that_was_created_again_are_left_alone():
    client = Client(entries={"k": entry("k", "5")})
    plan = rehearsed(client, k="7")
    client.topic = topic(topic_id=OTHER_ID)
    assert "created again" in refused(topic_settings.carry_out_settings(client, plan))


def test_what_other_brokers_do_not_forecast_is_said():
    client = Client(entries={"retention.ms": entry("retention.ms", "5"), "flush.ms": entry("flush.ms", "5")})
    assert "not known" in topic_settings.settings_value(rehearsed(client, retention_ms="1"))["notes"][0]
    assert topic_settings.settings_value(rehearsed(client, flush_ms="1"))["notes"] == []


def deletions(*ends: int) -> list[ForecastDeletion]:
    return [ForecastDeletion(reason="time", segment_count=1, size_bytes=100, end_offset=end) for end in ends]


@pytest.mark.parametrize(
    ("proposed", "present", "expected"),
    [
        ((), (), {"records": 0, "anyway": 0, "kept": 0, "bytes": 0}),
        ((30, 50), (), {"records": 40, "anyway": 0, "kept": 0, "bytes": 200}),
        ((50,), (30,), {"records": 40, "anyway": 20, "kept": 0}),
        ((), (30,), {"records": 0, "anyway": 0, "kept": 20}),
        ((5,), (), {"records": 0, "delete_to": 10}),
    ],
)
def test_a_forecast_tells_what_the_change_deletes_and_keeps(
    proposed: tuple[int, ...], present: tuple[int, ...], expected: dict[str, int]
):
    """The log starts at 10. A segment below it has no records left."""
    retained = RetainedPartition(partition_index=0, error_code=0, log_start_offset=10, high_watermark=60)
    described = SegmentsOfPartition(
        partition_index=0,
        error_code=0,
        retained=retained,
        forecast=[RetentionForecast(proposed=deletions(*proposed), present=deletions(*present))],
    )
    found = PartitionSegments(leader=1, checked_at_ms=0, next_check_at_ms=-1, described=described)
    row = topic_settings.forecast_row(found, topic(replicas=(1, 2)))
    assert {key: row[key] for key in expected} == expected
    assert row["replicas"] == 2


# ---------------------------------------------------------------------- topics
@pytest.mark.parametrize(
    ("now", "words"), [(topic(3), "3 partitions now, and had 1"), (topic(topic_id=OTHER_ID), "created again")]
)
def test_partitions_are_added_to_the_topic_that_was_shown(now: TopicDescription, words: str):
    client = Client()
    plan = run(topic_changes.rehearse_growth(client, {"topic": "t", "partitions": "4"}))
    client.topic, client.altered = now, []
    assert words in refused(topic_changes.carry_out_growth(client, plan))
    assert client.altered == []


@pytest.mark.parametrize(
    ("replicas", "configs", "count"),
    [(3, {}, 0), (1, {}, 1), (2, {"min.insync.replicas": "3"}, 1), (-1, {"min.insync.replicas": "x"}, 0)],
)
def test_a_creation_warns(replicas: int, configs: dict[str, str], count: int):
    new = NewTopic(name="t", partitions=1, replication_factor=replicas, configs=configs)
    assert len(topic_changes.creation_notes(new)) == count


# ---------------------------------------------------------------------- records
@pytest.mark.parametrize(
    ("key", "value", "policy", "words"),
    [
        (b"k", b"v", "delete", []),
        (b"k", None, "delete", ["a tombstone deletes nothing"]),
        (b"k", None, "compact", ["earlier records with the key"]),
        (b"k", b"v", "compact,delete", ["replace earlier ones"]),
        (None, b"v", "compact", ["refuse records without a key"]),
        (None, None, "delete", ["neither a key nor a value"]),
    ],
)
def test_records_warn_by_the_policy_of_their_topic(
    key: bytes | None, value: bytes | None, policy: str, words: list[str]
):
    notes = produce.notes_of([(0, key, value, ())], policy)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))


def plan_of(*partitions: int) -> produce.RehearsedRecords:
    records = {TopicPartition("t", number): [(0, b"k", b"v", ())] for number in partitions}
    return produce.RehearsedRecords(topic(2), records, dict.fromkeys(records, 70), ())


def test_a_partition_that_fails_is_named_beside_one_that_does_not():
    refusal = BrokerAnsweredError(ErrorCode.INVALID_RECORD, "records for t-1")
    client = Client(topic=topic(2), written={0: WrittenRecords(first_offset=7, append_time_ms=None), 1: refusal})
    assert run(produce.carry_out_records(client, plan_of(0, 1)))["partitions"] == [
        {"partition": 0, "records": 1, "offset": 7, "error": None},
        {"partition": 1, "records": 1, "offset": None, "error": "records for t-1: INVALID_RECORD."},
    ]
    with pytest.raises(AdminError, match="INVALID_RECORD"):
        run(produce.carry_out_records(client, plan_of(1)))


def test_a_late_answer_says_that_records_may_be_written():
    late = DeadlineExceededError("no answer")
    for written in (late, {0: late}):
        client = Client(topic=topic(2), written=written)
        assert "may have been written" in refused(produce.carry_out_records(client, plan_of(0)))
