"""Asks share coordinators, on this broker or others, to initialize, delete, read and write states.

Each share partition has its own coordinator. Questions for one broker go out in one request.

Guards: a question without an answer counts as not done; the caller asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from lowtide.broker.coordinator.runtime.effects import Effects, Reply
from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator, coordinator_key
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import StateBatch, StateWrite, StoredState
from lowtide.broker.pending import Pending
from lowtide.broker.promises import answer_of
from lowtide.metadata.broker_image import BrokerImage
from lowtide.protocol.api_keys import API, ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeStatePartition,
    InitializeStateTopic,
)
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadStatePartition,
    ReadStatePartitionResult,
    ReadStateTopic,
    ShareStateBatch,
)
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    SummaryStatePartition,
    SummaryStatePartitionResult,
    SummaryStateTopic,
)
from lowtide.protocol.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from lowtide.protocol.share_state_records import SharePlace
from lowtide.protocol.types import LeaderEpoch, Offset, TopicId

STATES_PURPOSE: Final = "share states"
"""The purpose of connections to share coordinators."""

TIMEOUT_MS: Final = 30_000
"""For one request. Source: Kafka's `request.timeout.ms`."""

Errors = dict[SharePlace, ErrorCode]


class _Question(NamedTuple):
    """One of the five requests to a share coordinator."""

    key: ApiKey
    decide: Callable[[ShareStates, SharePlace, Any, Reply, Effects], None]
    """Answers a row on this broker."""
    request: Callable[..., Any]
    topic: Callable[..., Any]
    row: Callable[[SharePlace], Any]

    def request_for(self, group_id: str, places: Iterable[SharePlace]) -> Any:
        """Returns the request about some share partitions."""
        topics: dict[TopicId, list[Any]] = {}
        for place in places:
            topics.setdefault(place.topic_id, []).append(self.row(place))
        rows = [self.topic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()]
        return self.request(group_id=group_id, topics=rows)


class SharePersister:
    """Asks the share coordinators of a cluster."""

    def __init__(self, shares: ShareCoordinator, peers: PeerClients) -> None:
        self._shares = shares
        self._peers = peers

    async def initialize(self, group_id: str, state_epoch: int, wanted: Mapping[SharePlace, Offset]) -> Errors:
        """Initializes states with their start offsets; -1 lets the partition's leader find it. Returns the outcomes."""

        def row(place: SharePlace) -> InitializeStatePartition:
            return InitializeStatePartition(
                partition=place.partition, state_epoch=state_epoch, start_offset=wanted[place]
            )

        key, request = ApiKey.INITIALIZE_SHARE_GROUP_STATE, InitializeShareGroupStateRequest
        question = _Question(key, ShareStates.initialize, request, InitializeStateTopic, row)
        return _errors_of(await self._ask(group_id, wanted, question))

    async def delete(self, group_id: str, places: Iterable[SharePlace]) -> Errors:
        """Deletes states. Returns the outcomes."""

        def row(place: SharePlace) -> DeleteStatePartition:
            return DeleteStatePartition(partition=place.partition)

        key, request = ApiKey.DELETE_SHARE_GROUP_STATE, DeleteShareGroupStateRequest
        question = _Question(key, ShareStates.delete, request, DeleteStateTopic, row)
        return _errors_of(await self._ask(group_id, places, question))

    async def summarize(
        self, group_id: str, places: Iterable[SharePlace]
    ) -> dict[SharePlace, SummaryStatePartitionResult]:
        """Returns the start offsets of share partitions, or why they are not known."""

        def row(place: SharePlace) -> SummaryStatePartition:
            return SummaryStatePartition(partition=place.partition, leader_epoch=-1)

        key, request = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY, ReadShareGroupStateSummaryRequest
        answers = await self._ask(
            group_id, places, _Question(key, ShareStates.summarize, request, SummaryStateTopic, row)
        )
        return {
            place: SummaryStatePartitionResult(partition=place.partition, error_code=answer)
            if isinstance(answer, ErrorCode)
            else answer
            for place, answer in answers.items()
        }

    async def read(self, place: SharePlace, leader_epoch: LeaderEpoch) -> StoredState | ErrorCode:
        """Reads the state of a share partition for its leader of this epoch, and fences leaders of earlier epochs.

        Errors: those of ReadShareGroupState, NETWORK_EXCEPTION, NOT_COORDINATOR for an invalid answer.
        """

        def row(of: SharePlace) -> ReadStatePartition:
            return ReadStatePartition(partition=of.partition, leader_epoch=leader_epoch)

        key, request = ApiKey.READ_SHARE_GROUP_STATE, ReadShareGroupStateRequest
        answers = await self._ask(
            place.group_id, [place], _Question(key, ShareStates.read, request, ReadStateTopic, row)
        )
        answer: ReadStatePartitionResult | ErrorCode = answers[place]
        if isinstance(answer, ErrorCode):
            return answer
        return _stored(answer) if answer.error_code == ErrorCode.NONE else ErrorCode(answer.error_code)

    async def write(
        self, place: SharePlace, leader_epoch: LeaderEpoch, state_epoch: int, write: StateWrite
    ) -> ErrorCode:
        """Writes what has changed in a share partition. Writing it twice is harmless.

        Errors: those of WriteShareGroupState, NETWORK_EXCEPTION, after which it may be written or not.
        """
        partition = WriteStatePartition(
            partition=place.partition,
            state_epoch=state_epoch,
            leader_epoch=leader_epoch,
            start_offset=write.start_offset,
            delivery_complete_count=write.complete_count,
            state_batches=[
                ShareStateBatch(
                    first_offset=each.first_offset,
                    last_offset=each.last_offset,
                    delivery_state=each.state,
                    delivery_count=each.delivery_count,
                )
                for each in write.batches
            ],
        )
        key, request = ApiKey.WRITE_SHARE_GROUP_STATE, WriteShareGroupStateRequest
        question = _Question(key, ShareStates.write, request, WriteStateTopic, lambda _place: partition)
        return _errors_of(await self._ask(place.group_id, [place], question))[place]

    async def _ask(self, group_id: str, places: Iterable[SharePlace], question: _Question) -> dict[SharePlace, Any]:
        """Returns the row of the answer for each share partition, or an error if there is none."""
        if not self._shares.topic.exists:
            await self._shares.topic.create()
        by_broker: dict[int, tuple[BrokerImage, list[SharePlace]]] = {}
        answers: dict[SharePlace, Any] = {}
        for place in places:
            coordinator = self._shares.topic.coordinator_of(coordinator_key(place))
            if isinstance(coordinator, ErrorCode):
                answers[place] = coordinator
            else:
                by_broker.setdefault(coordinator.broker_id, (coordinator, []))[1].append(place)
        for broker_id, (broker, some) in by_broker.items():
            if broker_id == self._shares.broker.metadata.broker_id:
                for place in some:
                    answers[place] = await self._ask_here(place, question)
            else:
                answers |= await self._ask_there(broker, some, question.key, question.request_for(group_id, some))
        return answers

    async def _ask_here(self, place: SharePlace, question: _Question) -> Any:
        shard = self._shares.find_place(place)
        if isinstance(shard, ErrorCode):
            return shard
        decide = partial(question.decide, shard.state, place, question.row(place))
        pending: Pending[Any] = self._shares.decide(shard, decide)
        answer = await answer_of(pending)
        return ErrorCode.COORDINATOR_NOT_AVAILABLE if answer is None else answer

    async def _ask_there(
        self, broker: BrokerImage, places: list[SharePlace], key: ApiKey, request: Any
    ) -> dict[SharePlace, Any]:
        version = API[key].max_version
        try:
            answer = await self._peers.client_of(broker, STATES_PURPOSE).request(key, version, request, TIMEOUT_MS)
        except PeerError as error:
            self._shares.broker.log.warning("a share coordinator could not be asked", reason=str(error))
            return dict.fromkeys(places, ErrorCode.NETWORK_EXCEPTION)
        group_id = request.group_id
        found = {
            SharePlace(group_id, topic.topic_id, row.partition): row
            for topic in answer.results
            for row in topic.partitions
        }
        return {place: found.get(place, ErrorCode.NETWORK_EXCEPTION) for place in places}


def _errors_of(answers: Mapping[SharePlace, Any]) -> Errors:
    return {
        place: answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
        for place, answer in answers.items()
    }


def _stored(row: ReadStatePartitionResult) -> StoredState | ErrorCode:
    """Returns the state in an answer."""
    try:
        batches = tuple(
            StateBatch(each.first_offset, each.last_offset, RecordState(each.delivery_state), each.delivery_count)
            for each in row.state_batches
        )
    except ValueError:  # A state of a later version.
        return ErrorCode.NOT_COORDINATOR
    return StoredState(state_epoch=row.state_epoch, start_offset=row.start_offset, batches=batches)
