"""Options of a read: Spark's names and defaults, and a refusal that names the option, its value and the reason."""

from __future__ import annotations

import logging

import pytest

from lowtide.pipeline.options import OptionError, parse_duration_ms
from lowtide.pipeline.read_options import EARLIEST, LATEST, read_options, wants_headers
from lowtide.protocol.types import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def options(stream: bool = False, **given: str):
    return read_options(
        {**SERVERS, "subscribe": "t", **{name.replace("__", "."): value for name, value in given.items()}},
        is_stream=stream,
    )


def test_defaults_are_those_of_sparks_kafka_source_but_for_aborted_records():
    batch, stream = options(), options(stream=True)
    assert (batch.starting.place, batch.ending.place, stream.starting.place) == (EARLIEST, LATEST, LATEST)
    assert batch.starting.is_earliest
    assert not stream.starting.is_earliest
    assert batch.fetch.fail_on_data_loss
    assert batch.fetch.read_committed
    assert not batch.fetch.include_headers
    assert (batch.fetch.poll_timeout_ms, stream.trigger_delay_max_ms, stream.offset_attempts) == (120_000, 900_000, 3)
    assert not options(kafka__isolation__level="read_uncommitted").fetch.read_committed


def test_zero_is_a_value_like_any_other():
    made = options(stream=True, kafka__fetch__max__wait__ms="0", fetchOffset__retryIntervalMs="0")
    assert (made.fetch.fetch_wait_ms, made.offset_retry_ms) == (0, 0)


def test_names_may_have_any_capitals():
    """Spark's own map has them in lower case when they are read."""
    assert options(stream=True, MAXOFFSETSPERTRIGGER="7", includeheaders="TRUE").offsets_per_trigger_max == 7
    assert wants_headers({"INCLUDEHEADERS": "True"})


def test_the_more_precise_place_to_begin_counts():
    given = {"startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"t": {"0": 5}}'}
    assert options(**given).starting.timestamps == {TopicPartition("t", 0): 5}
    assert options(**given, startingTimestamp="9").starting.timestamp == 9


def test_client_settings_come_from_kafkas_keys(caplog):
    with caplog.at_level(logging.WARNING):
        made = options(kafka__request__timeout__ms="1234", kafka__group__id="g", kafka__session__timeout__ms="5").client
    assert made.request_timeout_ms == 1234
    assert [record.getMessage() for record in caplog.records] == ["options without effect: kafka.session.timeout.ms"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"subscribe": "t"}, "option kafka.bootstrap.servers is missing: it names at least one broker as host:port"),
        (SERVERS, "one of subscribe, subscribePattern and assign must be given"),
        (SERVERS | {"subscribe": "t", "assign": "{}"}, "options subscribe and assign exclude each other"),
        (SERVERS | {"subscribe": " , "}, "option subscribe is ' , ': it names no topic"),
        (
            SERVERS | {"subscribePattern": "("},
            "option subscribePattern is '(': it is not a valid regular expression: missing )",
        ),
        (SERVERS | {"assign": '{"t": 0}'}, 'option assign is \'{"t": 0}\': it must be JSON such as {"topic": [0, 1]}'),
        (SERVERS | {"assign": "{t}"}, "option assign is '{t}': it is not valid JSON: Expecting property name"),
    ],
)
def test_the_topics_must_be_given_once(given, message):
    with pytest.raises(OptionError) as refused:
        read_options(given, is_stream=False)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize(
    ("stream", "name", "value", "message"),
    [
        (False, "startingOffsets", "newest", "it is not valid JSON"),
        (False, "startingOffsets", "latest", "a batch query must not begin at the latest offset"),
        (False, "startingOffsets", '{"t": {"0": -1}}', "a batch query must not begin at the latest offset"),
        (False, "startingOffsets", '{"t": {"0": -3}}', "it must be earliest, latest, or JSON"),
        (False, "startingOffsets", '{"t": {"0": "five"}}', "'five' is not a number for t-0"),
        (False, "startingOffsets", '{"t": {"first": 5}}', "'first' is not a number for a partition of t"),
        (False, "startingOffsets", '{"t": {"2147483648": 5}}', "'2147483648' is not a number for a partition of t"),
        (False, "startingOffsets", '{"t": {"0": 9223372036854775808}}', "9223372036854775808 is not a number for t-0"),
        (False, "assign", '{"t": [2147483648]}', 'it must be JSON such as {"topic": [0, 1]}'),
        (False, "endingOffsets", "earliest", "a batch query must not end at the earliest offset"),
        (False, "endingOffsets", '{"t": {"0": -2}}', "a batch query must not end at the earliest offset"),
        (True, "endingOffsets", "latest", "a stream has no end"),
        (False, "startingTimestamp", "yesterday", "it must be a whole number from 0"),
        (False, "startingOffsetsByTimestamp", '{"t": 5}', "t has 5 instead of partitions"),
        (False, "startingOffsetsByTimestampStrategy", "earliest", "it must be error or latest"),
        (True, "maxOffsetsPerTrigger", "0", "it must be a whole number from 1"),
        (True, "maxTriggerDelay", "soon", "it must be a time such as 500ms, 30s, 15m, 2h or 7 days"),
        (False, "minOffsetsPerTrigger", "5", "it works in streams only"),
        (False, "minPartitions", "many", "it must be a whole number from 1 to 2147483647"),
        (False, "failOnDataLoss", "no", "it must be true or false"),
        (False, "maxOffsetPerTrigger", "5", "there is no such option; is maxOffsetsPerTrigger meant?"),
        (False, "colour", "blue", "there is no such option"),
        (False, "kafka.isolation.level", "serializable", "it must be read_committed or read_uncommitted"),
        (False, "kafka.auto.offset.reset", "latest", "startingOffsets says where a query begins"),
        (False, "kafka.enable.auto.commit", "true", "Spark keeps the positions in its checkpoint"),
        (False, "kafka.value.deserializer", "x", "values are given as bytes"),
    ],
)
def test_a_value_that_is_impossible_is_refused_with_name_value_and_reason(stream, name, value, message):
    with pytest.raises(OptionError) as refused:
        read_options(SERVERS | ({} if name == "assign" else {"subscribe": "t"}) | {name: value}, is_stream=stream)
    known = name if name.lower() != "maxoffsetpertrigger" else name.lower()
    assert str(refused.value).startswith(f"option {known} is {value!r}: {message}")


def test_the_minimum_of_a_batch_cannot_exceed_its_maximum():
    with pytest.raises(
        OptionError,
        match="option minOffsetsPerTrigger is '9': it must not be more than maxOffsetsPerTrigger, which is 5",
    ):
        options(stream=True, minOffsetsPerTrigger="9", maxOffsetsPerTrigger="5")


def test_a_setting_of_the_client_that_is_impossible_names_the_key():
    with pytest.raises(OptionError, match=r"the options kafka\.\*: request.timeout.ms is 'soon'"):
        options(kafka__request__timeout__ms="soon")


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("5", 5),
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("10 minutes", 600_000),
        ("1 Hour", 3_600_000),
        ("7 days", 604_800_000),
    ],
)
def test_times_are_read_in_common_forms(text, milliseconds):
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize("text", ["", "-5s", "1.5h", "ten minutes", "5 parsecs", "s"])
def test_an_invalid_time_is_none(text):
    assert parse_duration_ms(text) is None
