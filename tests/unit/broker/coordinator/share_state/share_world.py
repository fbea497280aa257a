"""A share coordinator's state over a log in a list, of which a test decides how much is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lowtide.broker.coordinator.runtime.effects import Effects, append_error
from lowtide.broker.coordinator.share_state.share_settings import ShareSettings
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_share_group_state import DeleteStatePartition
from lowtide.protocol.messages.initialize_share_group_state import InitializeStatePartition
from lowtide.protocol.messages.read_share_group_state import ReadStatePartition, ShareStateBatch
from lowtide.protocol.messages.read_share_group_state_summary import SummaryStatePartition
from lowtide.protocol.messages.write_share_group_state import WriteStatePartition
from lowtide.protocol.share_state_records import SharePlace, decode_share_state
from lowtide.protocol.types import TopicId

TOPIC: TopicId = b"\1" * 16
PLACE = SharePlace("g", TOPIC, 0)
ACCEPTED, AVAILABLE = 2, 0


class Answer:
    """The answer to a request, if there is one yet."""

    def __init__(self) -> None:
        self.response: Any = None

    @property
    def error(self) -> ErrorCode | None:
        return None if self.response is None else ErrorCode(self.response.error_code)


def batch(first: int, last: int, state: int = ACCEPTED, count: int = 1) -> ShareStateBatch:
    """A range of records."""
    return ShareStateBatch(first_offset=first, last_offset=last, delivery_state=state, delivery_count=count)


class ShareWorld:
    """The coordinator. `log_start` is how far its log was cut."""

    def __init__(self, settings: ShareSettings | None = None) -> None:
        self.settings = settings if settings is not None else ShareSettings()
        self.partitions = {TOPIC: 4}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.log_start = 0
        self.committed = 0
        self.holds_back = False
        self.held: list[tuple[int, list[Any]]] = []
        self.now_ms = 1_000_000
        self.wall_offset_ms = 0
        """How far the wall clock is ahead of the true time."""
        self.state = ShareStates(self.settings, self)
        self.decide(self.state.on_loaded)

    # What the state asks for
    def has_partition(self, topic_id: TopicId, partition: int) -> bool:
        return 0 <= partition < self.partitions.get(topic_id, 0)

    def prune(self, states: ShareStates, start_offset: int) -> None:
        assert states is self.state
        assert start_offset <= self.committed, (
            "what is cut must not be needed by a coordinator that loads the committed log"
        )
        self.log_start = max(self.log_start, start_offset)

    # The runtime
    def decide(self, decision: Callable[[Effects], None]) -> None:
        effects = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
        decision(effects)
        self.carry_out(effects)

    def carry_out(self, effects: Effects) -> None:
        for record, change in zip(effects.records, effects.changes, strict=True):
            self.log.append(record)
            self.state.note(change, len(self.log) - 1)
        for reply, response in effects.answers:
            reply.response = response
        end = len(self.log) if effects.records else effects.barrier + 1
        if effects.then and self.holds_back and end > self.committed:
            self.held.append((end, effects.then))
            return
        if not self.holds_back:
            self.committed = len(self.log)
        self.go_on(effects.then, ErrorCode.NONE)

    def go_on(self, then: list[Any], error: ErrorCode) -> None:
        for each in then:
            later = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
            each(error, later)
            self.carry_out(later)

    def commit(self) -> None:
        """Commits the whole log."""
        self.holds_back, self.committed = False, len(self.log)
        held, self.held = self.held, []
        for _, then in held:
            self.go_on(then, ErrorCode.NONE)

    def move(self, kept: int | None = None) -> None:
        """Another coordinator loads the log, which has at least what is committed."""
        held, self.held = self.held, []
        del self.log[max(kept if kept is not None else 0, self.committed) :]
        self.committed, self.holds_back = len(self.log), False
        old, self.state = self.state, ShareStates(self.settings, self)
        old.on_unloaded(Effects(self.now_ms, self.now_ms + self.wall_offset_ms))
        for _, then in held:
            for each in then:
                each(
                    ErrorCode.NOT_LEADER_OR_FOLLOWER, effects := Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
                )
                for reply, response in effects.answers:
                    reply.response = response
        for offset in range(self.log_start, len(self.log)):
            change = decode_share_state(*self.log[offset])
            assert change is not None
            self.state.apply(change, offset)
        self.decide(self.state.on_loaded)

    def run_timers(self, passed_ms: int) -> None:
        """Lets so much time pass."""
        self.now_ms += passed_ms
        while (key := self.state.timers.take_due(self.now_ms)) is not None:
            effects = Effects(self.now_ms, self.now_ms + self.wall_offset_ms)
            self.state.on_timer(key, effects)
            self.carry_out(effects)

    # Requests
    def ask(self, decide: Any, row: Any, place: SharePlace) -> Answer:
        answer = Answer()
        self.decide(lambda effects: decide(self.state, place, row, answer, effects))
        return answer

    def initialize(self, state_epoch: int = 1, start_offset: int = -1, place: SharePlace = PLACE) -> Answer:
        row = InitializeStatePartition(partition=place.partition, state_epoch=state_epoch, start_offset=start_offset)
        return self.ask(ShareStates.initialize, row, place)

    def read(self, leader_epoch: int = 0, place: SharePlace = PLACE) -> Answer:
        return self.ask(
            ShareStates.read, ReadStatePartition(partition=place.partition, leader_epoch=leader_epoch), place
        )

    def write(
        self,
        *batches: ShareStateBatch,
        start_offset: int = -1,
        state_epoch: int = 1,
        leader_epoch: int = 0,
        count: int = 0,
        place: SharePlace = PLACE,
    ) -> Answer:
        row = WriteStatePartition(
            partition=place.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=start_offset,
            delivery_complete_count=count,
            state_batches=list(batches),
        )
        return self.ask(ShareStates.write, row, place)

    def summarize(self, leader_epoch: int = -1, place: SharePlace = PLACE) -> Answer:
        return self.ask(
            ShareStates.summarize, SummaryStatePartition(partition=place.partition, leader_epoch=leader_epoch), place
        )

    def delete(self, place: SharePlace = PLACE) -> Answer:
        return self.ask(ShareStates.delete, DeleteStatePartition(partition=place.partition), place)


__all__ = ["PLACE", "TOPIC", "Answer", "ShareWorld", "append_error", "batch"]
