"""The groups of one coordinator on a test clock, with a log in memory: tests see each append, commit and response."""

from __future__ import annotations

import copy
import random
from typing import Any

from lowtide.broker.coordinator.classic.classic_group import ClassicGroup
from lowtide.broker.coordinator.classic.joining import MemberClient
from lowtide.broker.coordinator.group_settings import GroupSettings
from lowtide.broker.coordinator.groups.group_shard import GroupChange, Groups
from lowtide.broker.coordinator.modern.topic_view import TopicView
from lowtide.broker.coordinator.runtime.effects import Effects, Job, Then, WorkerCall
from lowtide.broker.coordinator.runtime.in_transaction import EndMarker, InTransaction
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.group_records import OffsetCommit, OffsetCommitKey, OffsetCommits, decode_record
from lowtide.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from lowtide.protocol.messages.leave_group import MemberIdentity
from lowtide.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

SESSION_MS = 10_000
REBALANCE_MS = 30_000
GROUP = "g"
WALL_START_MS = 1_000_000_000_000


def singly(change: Any) -> list[Any]:
    """The single changes that the records of a change contain."""
    if not isinstance(change, OffsetCommits):
        return [change]
    return [
        OffsetCommit(OffsetCommitKey(group=change.group, topic=change.topic, partition=partition), value)
        for partition, value in change.values.items()
    ]


class Answer:
    """Stands for a request that waits; `response` is its response."""

    def __init__(self) -> None:
        self.response: Any = None

    @property
    def error(self) -> ErrorCode | None:
        """The error code of the answer, None while there is none."""
        return None if self.response is None else ErrorCode(self.response.error_code)


class World:
    """Groups, their log and a clock. With `holds_commits`, records are committed only by `commit`."""

    def __init__(self, settings: GroupSettings | None = None, *, seed: int = 0) -> None:
        self.settings = settings if settings is not None else GroupSettings(initial_rebalance_delay_ms=0)
        self.groups = self.make_groups(self.settings, seed)
        self.seed = seed
        self.now_ms = 0
        self.wall_offset_ms = 0
        """How far the wall clock is ahead of the true time."""
        self.log: list[tuple[int, GroupChange]] = []
        """Records by offset; compaction may have removed some."""
        self.end_offset = 0
        self.holds_commits = False
        self.holds_work = False
        self.work: list[WorkerCall] = []
        self.holds_jobs = False
        self.jobs: list[Job] = []
        self.append_fails: ErrorCode | None = None
        self._waiting: list[list[Then]] = []
        self.carry_out(self._loaded())

    def make_groups(self, settings: GroupSettings, seed: int, topics: TopicView | None = None) -> Groups:
        """The groups under test."""
        return Groups(settings, random.Random(seed), topics=topics)

    @property
    def classic_group(self) -> ClassicGroup:
        """The group `GROUP`, of classic members."""
        group: ClassicGroup = self.groups.by_id[GROUP]
        return group

    def _loaded(self) -> Effects:
        effects = self.effects()
        self.groups.on_loaded(effects)
        return effects

    def effects(self) -> Effects:
        """The beginning of a decision."""
        return Effects(self.now_ms, WALL_START_MS + self.now_ms + self.wall_offset_ms)

    def carry_out(self, effects: Effects) -> None:
        """Carries out effects as the runtime does."""
        error = ErrorCode.NONE
        if effects.records and self.append_fails is not None:
            error = self.append_fails
        elif effects.records:
            self._append(effects)
        for reply, response in effects.answers:
            assert reply.response is None, "a request is answered once"
            reply.response = response
        if effects.then and self.holds_commits and effects.records and error == ErrorCode.NONE:
            self._waiting.append(effects.then)
        else:
            self._go_on(effects.then, error)
        self.jobs += effects.jobs
        if not self.holds_jobs:
            self.do_jobs()
        self.work += effects.work
        if not self.holds_work:
            self.do_work()

    def do_jobs(self) -> None:
        """Takes the steps of jobs to their end."""
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            for _step in job.steps:
                pass
            after = self.effects()
            job.on_done(after)
            self.carry_out(after)

    def do_work(self) -> None:
        """Lets the worker do its work."""
        work, self.work = self.work, []
        for each in work:
            after = self.effects()
            each.on_done(each.call(), after)
            self.carry_out(after)

    def _append(self, effects: Effects) -> None:
        """Appends each record separately, as a coordinator that loads the log reads them."""
        producer, said = effects.producer, []
        for change in effects.changes:
            self.groups.note(
                change if producer is None else InTransaction(producer[0], change), self.end_offset + len(said)
            )
            said += singly(change)
        assert [decode_record(*record) for record in effects.records] == said
        for single in said:
            self.log.append((self.end_offset, single if producer is None else InTransaction(producer[0], single)))
            self.end_offset += 1

    def append(self, change: GroupChange) -> None:
        """Appends a record or a marker to the log."""
        self.log.append((self.end_offset, change))
        self.end_offset += 1
        self.groups.note(change, self.end_offset - 1)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """Writes the marker of a producer's transaction."""
        self.append(EndMarker(producer_id, is_commit))

    def _go_on(self, then: list[Then], error: ErrorCode) -> None:
        for go_on in then:
            effects = self.effects()
            go_on(error, effects)
            self.carry_out(effects)

    def commit(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """Commits what was appended, or fails its commit."""
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            self._go_on(then, error)

    def pass_time(self, milliseconds: int) -> None:
        """Lets time pass, and runs what is due at its time."""
        end = self.now_ms + milliseconds
        while (next_ms := self.groups.timers.next_ms) is not None and next_ms <= end:
            self.now_ms = max(self.now_ms, next_ms)
            key = self.groups.timers.take_due(self.now_ms)
            if key is not None:
                effects = self.effects()
                self.groups.on_timer(key, effects)
                self.carry_out(effects)
        self.now_ms = end

    def reload(self) -> World:
        """Another coordinator, which has loaded the log, and assigns other member ids."""
        other = copy.copy(self)
        other.seed += 1
        other.groups = self.make_groups(self.settings, other.seed)
        other._waiting, other.work, other.jobs = [], [], []
        for offset, change in self.log:
            other.groups.apply(change, offset)
        other.log, other.end_offset = list(self.log), self.end_offset
        other.now_ms = self.now_ms
        other.carry_out(other._loaded())
        return other

    # ------------------------------------------------------------------ requests
    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        version: int = 9,
        protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
        group: str = GROUP,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> Answer:
        """JoinGroup."""
        answer = Answer()
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
        )
        effects = self.effects()
        self.groups.join(request, MemberClient("client", "/host", version), answer, effects)
        self.carry_out(effects)
        return answer

    def new_member(self, **more: Any) -> tuple[str, Answer]:
        """Get an id, and join with it: the id, and the response at the end of the rebalance."""
        member_id = self.join(**more).response.member_id
        return member_id, self.join(member_id, **more)

    def sync(
        self, member_id: str, generation_id: int, assignments: dict[str, bytes] | None = None, **more: Any
    ) -> Answer:
        """SyncGroup."""
        answer = Answer()
        rows = [
            SyncGroupRequestAssignment(member_id=name, assignment=part) for name, part in (assignments or {}).items()
        ]
        effects = self.effects()
        request = SyncGroupRequest(
            group_id=GROUP, generation_id=generation_id, member_id=member_id, assignments=rows, **more
        )
        self.groups.sync(request, answer, effects)
        self.carry_out(effects)
        return answer

    def heartbeat(self, member_id: str, generation_id: int, instance_id: str | None = None) -> ErrorCode:
        """Heartbeat."""
        return self.groups.heartbeat(GROUP, member_id, instance_id, generation_id, self.now_ms)

    def leave(self, *members: MemberIdentity) -> list[ErrorCode]:
        """LeaveGroup."""
        effects = self.effects()
        rows = self.groups.leave(GROUP, members, effects)
        self.carry_out(effects)
        return [ErrorCode(row.error_code) for row in rows]

    def stable(self, count: int = 1, **more: Any) -> tuple[list[str], int]:
        """A stable group of new members: their ids, and its generation. Each has its own id as its assignment."""
        members: list[str] = []
        for _ in range(count):
            member_id, last = self.new_member(**more)
            others = [self.join(known, **more) for known in members]
            members.append(member_id)
        responses = [answer.response for answer in (*others, last)]
        leader = next(response.leader for response in responses)
        generation_id = responses[0].generation_id
        for member_id in sorted(members, key=lambda each: each == leader):
            answer = self.sync(member_id, generation_id, {each: each.encode() for each in members})
        assert answer.error == ErrorCode.NONE
        return members, generation_id
