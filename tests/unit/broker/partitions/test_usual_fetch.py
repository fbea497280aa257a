"""The short form of Fetch against the definition: the same answers, sessions and figures."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lowtide.broker.lifecycle import serving
from lowtide.broker.partitions.fetch.fetch_session import FetchTarget
from lowtide.broker.partitions.fetch.fetch_session_cache import FetchSessionCache
from lowtide.broker.partitions.fetch.usual_fetch import UsualFetch
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from lowtide.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from lowtide.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, ReplicaState
from lowtide.protocol.types import ZERO_TOPIC_ID
from lowtide.replication.topic_traffic import Traffic
from lowtide.storage.log.log import AppendedBatch
from lowtide.storage.log.markers import make_marker
from lowtide.storage.log.validation.validation_rules import ValidationRules
from lowtide.storage.log.validation.validator import ValidatedBatch, validate_produce
from tests.examples import examples

from .leading import NONE, Leading, simulate

PLACES: Final = [("t", 0), ("t", 1), ("u", 0), ("f", 0), ("t", 7), ("unknown", 0)]
"""Partitions that are led here, one that has a follower, and two that there aren't."""
FOLLOWED: Final = ("f", 0)
SMALL, LARGE = 1, 20_000
TOPIC, CLUSTER, CLUSTER_NAME = 2, 4, "kafka-cluster"
ALL, READ, CLUSTER_ACTION, DENY, ALLOW, LITERAL = 2, 3, 9, 2, 3, 3
SECURED: Final = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow_everyone_if_no_acl_found": "true",
}

Operation = tuple[str, int, int, int, int]

KINDS: Final = (
    ["begin_session", "wait", "produce", "transaction", "end", "delete", "recreate", "wrong", "forbid"]
    + 2 * ["fetch", "follow"]
    + 4 * ["continue_session"]
)
"""The methods of `Player`, some of them more often than others."""

NUMBERS: Final = st.integers(0, 2**16)
OPERATIONS: Final[st.SearchStrategy[Operation]] = st.tuples(st.sampled_from(KINDS), NUMBERS, NUMBERS, NUMBERS, NUMBERS)
FIRST: Final[list[Operation]] = [
    ("produce", 0, SMALL, 0, 0),
    ("produce", 2, LARGE - 1, 0, 0),
    ("begin_session", 5, 3, 0, 1),
]


class Player:
    """Carries operations out, and notes what came of them: the same numbers give the same requests in both forms."""

    def __init__(self, world: Leading, *, is_secured: bool = False) -> None:
        self.world = world
        self.is_secured = is_secured
        self.seen: list[Any] = []
        self.sessions: list[dict[str, Any]] = []
        self.other: Any = None
        """A connection on which nothing waits."""
        self.follower: dict[str, Any] | None = None
        self.sequences: dict[tuple[tuple[str, int], int], int] = {}

    async def begin(self) -> None:
        await self.world.start(2, **(SECURED if self.is_secured else {}))
        await self.world.create_topic("t", (1,), (1,))
        await self.world.create_topic("u", (1,))
        await self.world.create_topic("f", (1, 2))
        self.other = await self.world.connect()
        if self.is_secured:
            anybody: dict[str, Any] = {
                "principal": "User:ANONYMOUS",
                "host": "*",
                "operation": ALL,
                "permission_type": ALLOW,
            }
            rules = [
                AclCreation(resource_type=kind, resource_name=name, **anybody)
                for kind, name in ((TOPIC, "*"), (CLUSTER, CLUSTER_NAME))
            ]
            await self.other.request(CreateAclsRequest(creations=rules), 3)
            await self.world.see()

    async def play(self, operation: Operation) -> None:
        kind, *numbers = operation
        self.seen.append((self.world.loop.time(), kind, await getattr(self, kind)(*numbers)))

    # Fetches
    def row(self, place: tuple[str, int], offset: int, choice: int) -> FetchPartition:
        """A row at an offset of the log, or one near its ends; now and then with a wrong leader epoch."""
        partition = self.world.replicas.partitions.get(place)
        start, end = (0, 0) if partition is None else (partition.log.log_start_offset, partition.log.log_end_offset)
        epoch = 0 if partition is None else partition.leader_epoch
        return FetchPartition(
            partition=place[1],
            fetch_offset=start - 1 + offset % (end - start + 3)
            if choice % 41 == 0
            else start + offset % (end - start + 1),
            current_leader_epoch=[-1, epoch + 1][choice % 2] if choice % 37 == 0 else epoch,
            last_fetched_epoch=[epoch, epoch + 1][choice % 2] if choice % 43 == 0 else -1,
            partition_max_bytes=[1 << 20, 30_000, 100, 0, -1][choice % 5] if choice % 3 == 0 else 1 << 20,
        )

    def request(
        self, version: int, places: list[tuple[str, int]], offset: int, choice: int, **fields: Any
    ) -> FetchRequest:
        topics = []
        for number, place in enumerate(places):
            name, topic_id = self.named(place[0], version)
            topics.append(
                FetchTopic(topic=name, topic_id=topic_id, partitions=[self.row(place, offset + number, choice)])
            )
        values: dict[str, Any] = {
            "max_wait_ms": 40 if choice % 3 else 0,
            "min_bytes": [1, 1, 1, 0, 500, 30_000][choice % 6],
            "max_bytes": [50 << 20, 50 << 20, 50, 25_000][choice % 4],
            "isolation_level": choice // 2 % 2 if choice % 47 else 2,
            "rack_id": "r1" if version >= 11 and choice % 5 == 0 else "",
        }
        return FetchRequest(topics=topics, **(values | fields))

    def named(self, topic: str, version: int) -> tuple[str, bytes]:
        known = self.world.replicas.image.topics.get(topic)
        if version < 13:
            return topic, ZERO_TOPIC_ID
        return "", b"no such topic..." if known is None else known.topic_id

    async def fetch(self, version: int, places: int, offset: int, choice: int) -> Any:
        version = 4 + version % 15
        return await self.world.client.request(self.request(version, chosen(places), offset, choice), version)

    async def wait(self, version: int, places: int, offset: int, choice: int) -> Any:
        """A fetch that waits while records come, or a topic goes."""
        version, some = 4 + version % 15, chosen(places)
        request = self.request(version, some, offset, choice, max_wait_ms=50, min_bytes=1 + choice % 3 * 30_000)
        answer = self.world.client.send(request, version)
        await asyncio.sleep(0.01)
        if choice % 5 == 0:
            await self.recreate(0, 0, 0, 0)
        for place in some[:2]:
            await self.produce(PLACES.index(place), choice, 0, 0)
            await asyncio.sleep(0.005)
        return await answer

    async def begin_session(self, version: int, places: int, offset: int, choice: int) -> Any:
        version = 7 + version % 12
        request = self.request(version, chosen(places), offset, choice, session_epoch=0)
        answer = await self.world.client.request(request, version)
        if answer.session_id:
            self.sessions.append({"version": version, "session_id": answer.session_id, "epoch": 1})
        return answer

    async def continue_session(self, number: int, places: int, offset: int, choice: int) -> Any:
        if not self.sessions:
            return None
        session = self.sessions[number % len(self.sessions)]
        version = session["version"]
        some = chosen(places)[: choice % 3]
        fields = {"session_id": session["session_id"], "session_epoch": session["epoch"]}
        if choice % 17 == 0:
            name, topic_id = self.named("t", version)
            fields["forgotten_topics_data"] = [ForgottenTopic(topic=name, topic_id=topic_id, partitions=[0])]
        answer = await self.world.client.request(self.request(version, some, offset, choice, **fields), version)
        session["epoch"] += 1
        if answer.error_code != NONE or not answer.session_id:
            self.sessions.remove(session)
        return answer

    async def wrong(self, number: int, version: int, epoch: int, choice: int) -> Any:
        """A session's wrong epoch, or the right one in another version; the session may live on."""
        session = self.sessions.pop(number % len(self.sessions)) if self.sessions else {"session_id": 5, "epoch": 1}
        version = 12 + version % 4
        wrong = session["epoch"] if epoch % 2 else epoch % 5 - 1
        request = self.request(version, [], 0, 1 + choice, session_id=session["session_id"], session_epoch=wrong)
        return await self.world.client.request(request, version)

    async def follow(self, offset: int, start: int, names: int, choice: int) -> Any:
        """A follower's fetch in its session."""
        partition = self.world.replicas.partitions[FOLLOWED]
        known = self.world.replicas.image.topics["f"]
        if self.follower is None or choice % 23 == 0:
            self.follower = {"session_id": 0, "epoch": 0, "offset": 0}
        session, log = self.follower, partition.log
        session["offset"] = min(session["offset"] + offset % 3, log.log_end_offset)
        row = FetchPartition(
            partition=FOLLOWED[1],
            fetch_offset=max(session["offset"], log.log_start_offset) if choice % 9 else offset % 5,
            current_leader_epoch=partition.leader_epoch,
            last_fetched_epoch=-1 if choice % 5 else partition.leader_epoch,
            log_start_offset=min(start % 4, log.log_start_offset),
            partition_max_bytes=1 << 20,
        )
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=2, replica_epoch=self.world.epochs[2]),
            max_wait_ms=20 * (choice % 2),
            min_bytes=1,
            session_id=session["session_id"],
            session_epoch=session["epoch"],
            topics=[FetchTopic(topic_id=known.topic_id, partitions=[row])]
            if names % 4 or session["epoch"] == 0
            else [],
        )
        answer = await self.world.client.request(request, 17)
        if answer.error_code == NONE:
            session |= {"session_id": answer.session_id, "epoch": session["epoch"] + 1}
        else:
            self.follower = None
        return answer

    # What happens to the partitions
    async def produce(self, place: int, size: int, _: int, __: int) -> Any:
        return self.append(place, build_batch([(1, None, bytes(size % LARGE + 1), ())]))

    async def transaction(self, place: int, producer: int, _: int, __: int) -> Any:
        """A record of a transaction of one of two producers."""
        key = PLACES[place % 4], 7 + producer % 2
        sequence = self.sequences[key] = self.sequences.get(key, -1) + 1
        content = build_batch(
            [(1, None, b"t", ())], producer_id=key[1], producer_epoch=0, base_sequence=sequence, is_transactional=True
        )
        return self.append(place, content)

    def append(self, place: int, content: bytes) -> Any:
        batch = validate_produce(memoryview(content), ValidationRules(), 1)
        assert isinstance(batch, ValidatedBatch)
        partition = self.world.replicas.partitions.get(PLACES[place % 4])
        return partition is not None and isinstance(self.world.replicas.append(partition, batch, 1), AppendedBatch)

    async def end(self, place: int, producer: int, is_commit: int, _: int) -> Any:
        partition = self.world.replicas.partitions.get(PLACES[place % 4])
        marker = make_marker(
            7 + producer % 2, 0, is_commit=is_commit % 4 != 0, coordinator_epoch=3, epoch_is_bumped=False, now_ms=1
        )
        return partition is not None and isinstance(self.world.replicas.append(partition, marker, 1), AppendedBatch)

    async def delete(self, number: int, offset: int, _: int, __: int) -> Any:
        return await self.world.delete(offset % 6, number=number % 2, timeout_ms=100)

    async def recreate(self, choice: int, _: int, __: int, ___: int) -> Any:
        """Delete a topic now and then, and create it again: its name is another topic's then."""
        if "u" in self.world.replicas.image.topics:
            if choice % 6:
                return None
            request = DeleteTopicsRequest(topics=[DeleteTopicState(name="u")], timeout_ms=10_000)
            answer = await self.other.request(request, 6)
            await self.world.see()
            self.sequences = {key: value for key, value in self.sequences.items() if key[0][0] != "u"}
            return [row.error_code for row in answer.responses]
        await self.world.create_topic("u", (1,))
        return None

    async def forbid(self, place: int, allows: int, _: int, __: int) -> Any:
        """A client may not read a topic, or a broker not follow; or each may again."""
        if not self.is_secured:
            return None
        topic = PLACES[place % 4][0]
        kind, name, operation = [(TOPIC, topic, READ), (CLUSTER, CLUSTER_NAME, CLUSTER_ACTION)][place % 7 == 0]
        entry: dict[str, Any] = {
            "principal": "User:ANONYMOUS",
            "host": "*",
            "operation": operation,
            "permission_type": DENY,
        }
        if allows % 3:
            found = DeleteAclsFilter(
                resource_type_filter=kind,
                resource_name_filter=name,
                pattern_type_filter=LITERAL,
                **{
                    f"{field}_filter" if field in ("principal", "host") else field: value
                    for field, value in entry.items()
                },
            )
            answer = await self.other.request(DeleteAclsRequest(filters=[found]), 3)
        else:
            made = AclCreation(resource_type=kind, resource_name=name, resource_pattern_type=LITERAL, **entry)
            answer = await self.other.request(CreateAclsRequest(creations=[made]), 3)
        await self.world.see()
        return answer

    def figures(self, sessions: FetchSessionCache) -> Any:
        """What was counted, and what the sessions know."""
        replicas = self.world.replicas
        traffic = {
            name: {field: getattr(replicas.traffic.of_topic(name), field) for field in Traffic.__slots__}
            for name in sorted({key.topic for key in replicas.partitions})
        }
        times = self.world.broker.serving.host.dispatcher.times.by_name
        counts = {name: times[name].count for name in sorted(times)}
        known = [
            (
                session.session_id,
                session.epoch,
                session.last_used_ms,
                *map(_state, session.targets.values()),
                *map(_key, session.changed),
            )
            for session in sessions.slots.sessions.values()
        ]
        leadership = replicas.partitions[FOLLOWED].leadership
        followers = {number: (repr(state), state.last_fetch_ms) for number, state in leadership.followers.items()}
        return traffic, counts, dict(replicas.traffic.errors), known, followers


def _key(target: FetchTarget) -> Any:
    return target.key


def _state(target: FetchTarget) -> Any:
    """What a session knows of a partition."""
    watched = None if target.watched is None else target.watched.topic_partition
    sent = target.sent_high_watermark, target.sent_log_start_offset
    asked = (
        target.fetch_offset,
        target.log_start_offset,
        target.partition_max_bytes,
        target.current_leader_epoch,
        target.last_fetched_epoch,
    )
    return target.key, target.topic, watched, sent, asked, target.at_end


def chosen(number: int) -> list[tuple[str, int]]:
    """Some places, each once, in some order; those that there are more often than others."""
    some = [place for bit, place in enumerate(PLACES) if number >> bit & 1 and (bit < 4 or number % 13 == 0)] or PLACES[
        :1
    ]
    return some if number % 3 else some[::-1]


def played(operations: list[Operation], *, is_secured: bool = False) -> list[Any]:
    """What came of the operations, and the figures in the end."""
    seen: list[Any] = []
    caches: list[FetchSessionCache] = []

    def cache(*arguments: Any) -> FetchSessionCache:
        caches.append(FetchSessionCache(*arguments))
        return caches[-1]

    async def run(world: Leading) -> None:
        player = Player(world, is_secured=is_secured)
        await player.begin()
        for operation in FIRST + operations:
            await player.play(operation)
        seen.extend(player.seen)
        seen.append(player.figures(caches[0]))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serving, "FetchSessionCache", cache)
        simulate(run)
    return seen


@settings(deadline=None, max_examples=examples(100))
@example([("transaction", 0, 0, 0, 0), ("end", 0, 0, 0, 0), ("fetch", 8, 1, 0, 6)], False)
@example([("produce", 1, LARGE - 1, 0, 0), ("produce", 1, LARGE - 1, 0, 0), ("fetch", 8, 0b110, 0, 7)], False)
@example([("continue_session", 0, 1, 1, 1), ("delete", 0, 1, 0, 0), ("continue_session", 0, 1, 0, 3)], False)
@example([("forbid", 4, 0, 0, 0), ("fetch", 8, 1, 0, 6), ("forbid", 4, 1, 0, 0), ("fetch", 8, 1, 0, 6)], True)
@example([("follow", 0, 0, 0, 1), ("forbid", 0, 0, 0, 0), ("follow", 0, 0, 0, 1)], True)
@given(st.lists(OPERATIONS, min_size=15, max_size=80), st.booleans())
def test_both_forms_give_the_same_answers_sessions_and_figures(operations: list[Operation], is_secured: bool) -> None:
    usual = played(operations, is_secured=is_secured)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UsualFetch, "answer", lambda *_: None)
        plain = played(operations, is_secured=is_secured)
    for number, (left, right) in enumerate(zip(usual, plain, strict=True)):
        assert left == right, (number, (FIRST + operations)[number : number + 1])


def test_most_fetches_of_consumers_are_answered_by_the_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long game of random operations meets it with and without sessions."""
    met: Counter[tuple[str, bool]] = Counter()
    answer = UsualFetch.answer

    def counted(usual: UsualFetch, request: FetchRequest, *rest: Any) -> Any:
        answered = answer(usual, request, *rest)
        met["session" if request.session_id else "alone", answered is not None] += 1
        return answered

    monkeypatch.setattr(UsualFetch, "answer", counted)
    source = Random(1)
    played([(source.choice(KINDS), *(source.randrange(2**16) for _ in range(4))) for _ in range(600)])  # type: ignore[misc]
    assert min(met[who, is_usual] for who in ("alone", "session") for is_usual in (True, False)) > 20, met
