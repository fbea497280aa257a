"""What group coordinators and leaders of partitions ask share coordinators: states begin, end, are read and written.

Each share partition has its coordinator, here or elsewhere. Questions for one broker go out together.

Guards: what isn't answered counts as not done; who asked asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from lowtide.broker.coordinator.share_state.share_coordinator import ShareCoordinator, coordinator_key
from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.network.peer_client import PeerClients, PeerError
from lowtide.broker.partitions.share.share_runs import RecordState
from lowtide.broker.partitions.share.share_values import StateBatch, StateWrite, StoredState
from lowtide.broker.pending import Pending, answer_of
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
"""Of connections to share coordinators."""

TIMEOUT_MS: Final = 30_000
"""For one request. Source: Kafka's `request.timeout.ms`."""

Errors = dict[SharePlace, ErrorCode]


class SharePersister:
    """Asks the share coordinators of a cluster."""

    def __init__(self, shares: ShareCoordinator, peers: PeerClients) -> None:
        self._shares = shares
        self._peers = peers

    async def initialize(self, group_id: str, state_epoch: int, wanted: Mapping[SharePlace, Offset]) -> Errors:
        """Have states begin, each with its start offset (-1: the partition's leader finds it). The outcome of each."""

        def request(places: Iterable[SharePlace]) -> InitializeShareGroupStateRequest:
            topics: dict[TopicId, list[InitializeStatePartition]] = {}
            for place in places:
                topics.setdefault(place.topic_id, []).append(row(place))
            rows = [
                InitializeStateTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ]
            return InitializeShareGroupStateRequest(group_id=group_id, topics=rows)

        def row(place: SharePlace) -> InitializeStatePartition:
            return InitializeStatePartition(
                partition=place.partition, state_epoch=state_epoch, start_offset=wanted[place]
            )

        return await self._ask(wanted, ApiKey.INITIALIZE_SHARE_GROUP_STATE, request, (ShareStates.initialize, row))

    async def delete(self, group_id: str, places: Iterable[SharePlace]) -> Errors:
        """Have states end. The outcome of each."""

        def request(some: Iterable[SharePlace]) -> DeleteShareGroupStateRequest:
            topics: dict[TopicId, list[DeleteStatePartition]] = {}
            for place in some:
                topics.setdefault(place.topic_id, []).append(row(place))
            rows = [
                DeleteStateTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()
            ]
            return DeleteShareGroupStateRequest(group_id=group_id, topics=rows)

        def row(place: SharePlace) -> DeleteStatePartition:
            return DeleteStatePartition(partition=place.partition)

        return await self._ask(places, ApiKey.DELETE_SHARE_GROUP_STATE, request, (ShareStates.delete, row))

    async def summarize(
        self, group_id: str, places: Iterable[SharePlace]
    ) -> dict[SharePlace, SummaryStatePartitionResult]:
        """How far share partitions are, or why that isn't known."""

        def request(some: Iterable[SharePlace]) -> ReadShareGroupStateSummaryRequest:
            topics: dict[TopicId, list[SummaryStatePartition]] = {}
            for place in some:
                topics.setdefault(place.topic_id, []).append(row(place))
            rows = [
                SummaryStateTopic(topic_id=topic_id, partitions=partitions) for topic_id, partitions in topics.items()
            ]
            return ReadShareGroupStateSummaryRequest(group_id=group_id, topics=rows)

        def row(place: SharePlace) -> SummaryStatePartition:
            return SummaryStatePartition(partition=place.partition, leader_epoch=-1)

        key = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
        answers = await self._ask_all(places, key, request, (ShareStates.summarize, row))
        return {
            place: SummaryStatePartitionResult(partition=place.partition, error_code=answer)
            if isinstance(answer, ErrorCode)
            else answer
            for place, answer in answers.items()
        }

    async def read(self, place: SharePlace, leader_epoch: LeaderEpoch) -> StoredState | ErrorCode:
        """What is stored of a share partition, for its leader of this epoch, which fences those before with it.

        Errors: those of ReadShareGroupState, NETWORK_EXCEPTION, NOT_COORDINATOR for an answer that makes no sense.
        """

        def request(_places: Iterable[SharePlace]) -> ReadShareGroupStateRequest:
            return ReadShareGroupStateRequest(
                group_id=place.group_id, topics=[ReadStateTopic(topic_id=place.topic_id, partitions=[row(place)])]
            )

        def row(of: SharePlace) -> ReadStatePartition:
            return ReadStatePartition(partition=of.partition, leader_epoch=leader_epoch)

        answers = await self._ask_all([place], ApiKey.READ_SHARE_GROUP_STATE, request, (ShareStates.read, row))
        answer: ReadStatePartitionResult | ErrorCode = answers[place]
        if isinstance(answer, ErrorCode):
            return answer
        return _stored(answer) if answer.error_code == ErrorCode.NONE else ErrorCode(answer.error_code)

    async def write(
        self, place: SharePlace, leader_epoch: LeaderEpoch, state_epoch: int, write: StateWrite
    ) -> ErrorCode:
        """Store what has changed in a share partition. Stored again it changes nothing.

        Errors: those of WriteShareGroupState, NETWORK_EXCEPTION, after which it may be stored or not.
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

        def request(_places: Iterable[SharePlace]) -> WriteShareGroupStateRequest:
            topics = [WriteStateTopic(topic_id=place.topic_id, partitions=[partition])]
            return WriteShareGroupStateRequest(group_id=place.group_id, topics=topics)

        answers = await self._ask(
            [place], ApiKey.WRITE_SHARE_GROUP_STATE, request, (ShareStates.write, lambda _place: partition)
        )
        return answers[place]

    async def _ask(
        self,
        places: Iterable[SharePlace],
        key: ApiKey,
        request: Callable[[Iterable[SharePlace]], Any],
        local: tuple[Any, Callable[[SharePlace], Any]],
    ) -> Errors:
        answers = await self._ask_all(places, key, request, local)
        return {
            place: answer if isinstance(answer, ErrorCode) else ErrorCode(answer.error_code)
            for place, answer in answers.items()
        }

    async def _ask_all(
        self,
        places: Iterable[SharePlace],
        key: ApiKey,
        request: Callable[[Iterable[SharePlace]], Any],
        local: tuple[Any, Callable[[SharePlace], Any]],
    ) -> dict[SharePlace, Any]:
        """The row of the answer for each, or an error where there is none."""
        if not self._shares.topic.exists:
            await self._shares.topic.create()
        by_broker: dict[int, tuple[BrokerImage, list[SharePlace]]] = {}
        errors: dict[SharePlace, Any] = {}
        for place in places:
            coordinator = self._shares.topic.coordinator_of(coordinator_key(place))
            if isinstance(coordinator, ErrorCode):
                errors[place] = coordinator
            else:
                by_broker.setdefault(coordinator.broker_id, (coordinator, []))[1].append(place)
        for broker_id, (broker, some) in by_broker.items():
            if broker_id == self._shares.broker.metadata.broker_id:
                for place in some:
                    errors[place] = await self._ask_here(place, *local)
            else:
                errors |= await self._ask_there(broker, some, key, request(some))
        return errors

    async def _ask_here(self, place: SharePlace, decide: Any, row: Callable[[SharePlace], Any]) -> Any:
        shard = self._shares.find_place(place)
        if isinstance(shard, ErrorCode):
            return shard
        states = shard.state
        pending: Pending[Any] = self._shares.decide(
            shard, lambda reply, effects: decide(states, place, row(place), reply, effects)
        )
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


def _stored(row: ReadStatePartitionResult) -> StoredState | ErrorCode:
    """The state that an answer has."""
    try:
        batches = tuple(
            StateBatch(each.first_offset, each.last_offset, RecordState(each.delivery_state), each.delivery_count)
            for each in row.state_batches
        )
    except ValueError:  # A state of a later version.
        return ErrorCode.NOT_COORDINATOR
    return StoredState(state_epoch=row.state_epoch, start_offset=row.start_offset, batches=batches)
