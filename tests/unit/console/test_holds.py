"""Changes of holds and standing erasures say in sentences what they do, and what an erasure meets is counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lowtide.admin.configs import ConfigEntry, ConfigResource
from lowtide.admin.errors import BrokerAnsweredError, UnsupportedVersionError
from lowtide.admin.finding import SearchedPartition
from lowtide.admin.group_offsets import CommittedOffset
from lowtide.admin.groups import GroupListing, ListedGroups
from lowtide.admin.share_groups import ShareOffset
from lowtide.admin.standing import StandingErasureDescription
from lowtide.console.erasure_ledger import NO_RIGHT
from lowtide.console.erasure_reach import hold_of, reach_of, reader_row
from lowtide.console.holds import RehearsedEnd, RehearsedHold, end_value, hold_value, standing_page
from lowtide.console.person_search import below
from lowtide.protocol.config_values import ConfigResourceType, ConfigSource
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from lowtide.protocol.offset_ranges import OffsetRange
from lowtide.protocol.types import TopicPartition

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
LATER_MS = NOW_MS + 1000


def entry(key: str, value: str | None) -> ConfigEntry:
    return ConfigEntry(key=key, value=value, source=ConfigSource.TOPIC, is_read_only=False, is_sensitive=False)


def config(**values: str | None) -> dict[str, ConfigEntry]:
    return {key.replace("_", "."): entry(key.replace("_", "."), value) for key, value in values.items()}


def found(*ranges: tuple[int, int], has_more: bool = False) -> SearchedPartition:
    return SearchedPartition(
        leader=1,
        leader_epoch=0,
        searched_from=0,
        searched_to=100,
        count=sum(last - first + 1 for first, last in ranges),
        offsets=tuple(OffsetRange(*each) for each in ranges),
        has_more=has_more,
    )


# ---------------------------------------------------------------------- holds
@pytest.mark.parametrize(
    ("values", "held"),
    [
        ({}, None),
        ({"lowtide_hold_until": "-1"}, None),
        ({"lowtide_hold_until": None}, None),
        ({"lowtide_hold_until": str(NOW_MS)}, None),
        ({"lowtide_hold_until": str(LATER_MS)}, (LATER_MS, "")),
        ({"lowtide_hold_until": str(LATER_MS), "lowtide_hold_reason": "case 7"}, (LATER_MS, "case 7")),
    ],
)
def test_a_hold_counts_until_it_ends(values: dict[str, str | None], held: tuple[int, str] | None):
    row = hold_of("t", config(**values), NOW_MS)
    assert (None if row is None else (row["until_ms"], row["reason"])) == held


def hold(until_ms: int | None, before: Any = None, *topics: str) -> dict[str, Any]:
    plan = RehearsedHold(topics=topics or ("t",), until_ms=until_ms, reason="case 7", before={"t": before})
    return hold_value(plan)


def test_a_new_hold_needs_no_more_rights():
    value = hold(LATER_MS)
    assert value["sentences"][0] == "All records of t stay until 2023-11-14T22:13:21.000Z."
    assert not value["topics"][0]["shortens"]
    assert not any("ALTER" in each for each in value["sentences"])


@pytest.mark.parametrize("until_ms", [None, LATER_MS])
def test_to_shorten_a_hold_needs_more_rights(until_ms: int | None):
    value = hold(until_ms, {"until_ms": LATER_MS + 1, "reason": "case 6"}, "t", "u")
    assert [row["shortens"] for row in value["topics"]] == [True, False]
    assert value["sentences"][-1] == "To end or to shorten a hold needs ALTER on the cluster."
    assert "2 topics" in value["sentences"][0]


# ---------------------------------------------------------------------- standing erasures
STANDING = StandingErasureDescription(
    erasure_id=UUID(int=7), topics=("t",), patterns=("u-*",), principal="User:eve", begun_ms=1, ends_ms=2, key_count=1
)


def test_the_end_of_a_standing_erasure_is_said():
    value = end_value(RehearsedEnd(standing=STANDING))
    assert (value["id"], value["keys"], value["topics"], value["patterns"]) == (str(UUID(int=7)), 1, ["t"], ["u-*"])
    assert value["sentences"][0] == "The brokers stop looking for 1 key, and forget their digests."


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (BrokerAnsweredError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "the standing erasure"), NO_RIGHT),
        (UnsupportedVersionError("no"), "These brokers have no standing erasures: only Lowtide's do."),
    ],
)
def test_who_cant_see_standing_erasures_gets_a_sentence(error: Exception, trouble: str):
    async def describe_standing_erasures() -> None:
        raise error

    client: Any = SimpleNamespace(describe_standing_erasures=describe_standing_erasures)
    assert asyncio.run(standing_page(client)) == {"trouble": trouble, "rows": []}


# ---------------------------------------------------------------------- who has copies
def test_offsets_below_are_counted():
    ranges = [(3, 5), (9, 9)]
    assert [below(ranges, offset) for offset in (0, 3, 4, 6, 9, 10)] == [0, 0, 1, 3, 3, 4]


def listing(group: str, kind: str = "consumer") -> GroupListing:
    return GroupListing(group_id=group, protocol_type="", state="Empty", kind=kind, coordinator=1)


def test_a_reader_has_passed_some_of_the_records():
    offsets: Any = {
        P0: CommittedOffset(offset=5),
        P1: CommittedOffset(offset=0),
        TopicPartition("u", 0): CommittedOffset(offset=9),
    }
    row = reader_row(listing("g"), offsets, {P0: found((3, 5)), P1: found((7, 7), has_more=True)})
    assert row is not None
    assert (row["group"], row["topics"], row["read"], row["at_least"]) == ("g", ["t"], 2, True)
    assert reader_row(listing("g"), {TopicPartition("u", 0): CommittedOffset(offset=9)}, {P0: found((3, 5))}) is None


class ReachedClient:
    """Has a share group with dead letters, a held topic, and a topic of which nothing may be deleted."""

    async def describe_configs(self, resources, *, keys):
        answers: dict[ConfigResource, Any] = {}
        for each in resources:
            if each.type is ConfigResourceType.GROUP:
                answers[each] = config(
                    errors_deadletterqueue_topic_name="dlq.t", errors_deadletterqueue_copy_record_enable="true"
                )
            elif each.name == "hidden":
                answers[each] = BrokerAnsweredError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, each)
            else:
                until = str(LATER_MS) if each.name == "t" else "-1"
                answers[each] = config(lowtide_hold_until=until, cleanup_policy="compact,delete")
        return answers

    def call(self):
        async def ask_any(request, _what):
            bits = {"t": 1 << 6 | 1 << 3, "hidden": 1 << 3}
            rows = [
                MetadataResponseTopic(
                    error_code=0, name=each.name, partitions=[], topic_authorized_operations=bits[each.name]
                )
                for each in request.topics
            ]
            return MetadataResponse(brokers=[], controller_id=1, topics=rows)

        return SimpleNamespace(ask_any=ask_any)

    async def list_groups(self):
        groups = {"g": listing("g"), "s": listing("s", "share")}
        return ListedGroups(groups=groups, errors={3: BrokerAnsweredError(ErrorCode.UNKNOWN_SERVER_ERROR, "g")})

    async def list_group_offsets(self, wanted):
        return {name: {P0: CommittedOffset(offset=4)} for name in wanted}

    async def list_share_group_offsets(self, names):
        return {name: {P0: ShareOffset(offset=6, lag=0)} for name in names}


def test_what_an_erasure_meets():
    client: Any = ReachedClient()
    reach = asyncio.run(reach_of(client, {P0: found((3, 5))}, {"t", "hidden"}, NOW_MS))
    assert [row["topic"] for row in reach["holds"]] == ["t"]
    assert (reach["compacted"], reach["without_delete"]) == (["t"], ["hidden"])
    assert [(row["group"], row["read"]) for row in reach["readers"]] == [("s", 3), ("g", 1)]
    assert reach["dead_letters"] == [{"topic": "dlq.t", "group": "s", "searched": False, "copies": True}]
    assert [each.partition(":")[0] for each in reach["unknown"]] == [
        "Holds of 1 of 2 topics are unknown",
        "The groups of broker 3 are unknown",
    ]
