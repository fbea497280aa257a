"""The transactions of one broker: leaderships, markers, completion, and the creation of the topic."""

from __future__ import annotations

import pytest

from lowtide.broker.coordinator.transactions.transaction import Transaction
from lowtide.broker.coordinator.transactions.transaction_coordinator import TRANSACTION_TOPIC
from lowtide.broker.coordinator.transactions.transaction_state import TransactionState
from lowtide.broker.network.peer_client import PeerClients
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.records import Listener
from lowtide.protocol.control_records import ControlRecordType
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import TopicPartition

from .coordinator_world import DATA, HERE, NAME, THERE, World

KEY = TopicPartition(TRANSACTION_TOPIC, 0)


# ---------------------------------------------------------------------- the topic
@pytest.mark.parametrize(("is_alone", "given", "replicas"), [(True, {}, 1), (True, {"factor": "3"}, 3), (False, {}, 3)])
def test_only_a_broker_that_stays_alone_makes_the_topic_with_fewer_replicas_than_the_default(
    *, is_alone: bool, given: dict[str, str], replicas: int
) -> None:
    """In a cluster, the other brokers may still register. A configured factor always applies."""
    world = World(
        is_alone=is_alone, **{f"transaction_state_log_replication_{key}": value for key, value in given.items()}
    )
    wanted, configs = world.make_topic(world.coordinator.topic)
    assert (wanted.name, wanted.replication_factor) == (TRANSACTION_TOPIC, replicas)
    assert configs["min.insync.replicas"] == ("1" if replicas == 1 else "2"), "the replicas are enough to write to it"


# ---------------------------------------------------------------------- whose turn it is
def test_what_is_led_here_is_loaded_with_a_tick_and_by_a_request_for_all() -> None:
    world = World(HERE, THERE, HERE)
    world.coordinator.on_tick()
    runtime = world.coordinator._runtime
    assert sorted(runtime.shards) == [0, 2]
    other = World(HERE, THERE, HERE)
    assert [shard.number for shard in other.shards()] == [0, 2]


def test_all_that_is_coordinated_here_is_not_known_before_all_of_it_is_loaded() -> None:
    world = World(HERE, HERE)
    world.partitions[KEY] = world.led(KEY, end_offset=5)
    assert world.coordinator.loaded() == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(world.work) == 1, "its log is read"


def test_nothing_is_coordinated_without_the_topic() -> None:
    """Its partitions may be here for a moment longer."""
    world = World(HERE)
    world.coordinator.on_tick()
    shard = world.shard()
    world.set_topics()
    world.coordinator.on_tick()
    assert shard.unloaded
    other = World(HERE)
    other.set_topics()
    assert other.shards() == []


def test_nothing_is_coordinated_by_a_broker_that_stops() -> None:
    world = World(HERE)
    shard = world.shard()
    world.coordinator.close()
    assert shard.unloaded
    assert world.coordinator.find(NAME) == ErrorCode.NOT_COORDINATOR


def test_connections_to_a_broker_that_registered_again_are_closed() -> None:
    """They may lead to a machine without power, which never closes them."""
    world = World(HERE)
    peers = world.coordinator.peers = PeerClients(None, None, None)  # nothing is sent
    listeners = (Listener("PLAINTEXT", "host", 9092),)
    old = MetadataImage(brokers={each: BrokerImage(each, 1, listeners) for each in (2, 3)})
    new = MetadataImage(brokers={each: BrokerImage(each, epoch, listeners) for each, epoch in ((2, 9), (3, 1))})
    names = ("transactions", "verification", "others")
    before = {(each, name): peers.client_of(old.brokers[each], name) for each in (2, 3) for name in names}
    world.coordinator.on_image(old, new, ImageDelta(brokers_changed=(2, 3)))
    closed = {key for key, client in before.items() if peers.client_of(new.brokers[key[0]], key[1]) is not client}
    assert closed == {(2, "transactions"), (2, "verification")}


# ---------------------------------------------------------------------- ids
def test_so_many_ids_may_begin_as_the_setting_says_and_known_ones_always() -> None:
    world = World(HERE, HERE, lowtide_transactional_ids_max="2")
    first, second = world.shards()
    transaction = Transaction(transactional_id="known", producer_id=1, producer_epoch=0, timeout_ms=1)
    first.state.transactions["known"] = transaction
    assert world.coordinator.may_begin(second, "another")
    second.state.transactions["another"] = transaction
    assert not world.coordinator.may_begin(second, "third"), "those of all partitions count"
    assert world.coordinator.may_begin(second, "another")
    first.state.transactions.clear()
    assert world.coordinator.may_begin(second, "third")
    first.state.transactions["x" * 300] = transaction
    second.state.transactions.clear()
    assert not world.coordinator.may_begin(second, "third"), "a long id counts as several"


# ---------------------------------------------------------------------- ends
@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_is_written_to_the_partitions_and_then_completed(*, is_commit: bool) -> None:
    world = World(HERE)
    world.begin()
    ending = world.end(is_commit=is_commit)
    world.run()
    (marker,) = world.markers
    assert marker.control.type is (ControlRecordType.COMMIT if is_commit else ControlRecordType.ABORT)
    assert (marker.producer_id, marker.producer_epoch) == (ending.producer_id, ending.producer_epoch)
    assert [key for key, _ in world.appended[-2:]] == [DATA, KEY]
    completed = world.shard().state.transactions[NAME].state
    assert completed is (TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT)


def test_a_coordinator_that_another_has_followed_sends_no_end() -> None:
    """Its successor may have loaded a log without this end."""
    world = World(HERE)
    world.begin()
    world.end()
    world.partitions[KEY].led_since += 1
    world.run()
    assert not world.markers


def test_a_state_that_was_loaded_again_sends_its_own_ends_only() -> None:
    world = World(HERE)
    world.begin()
    world.end()
    shard = world.shard()
    world.partitions[KEY] = world.led(KEY)
    world.coordinator.on_tick()
    assert shard.unloaded
    assert shard.leads, "the partition that it was of"
    world.run()
    assert not world.markers


def test_an_end_that_all_partitions_have_is_completed_by_its_own_coordinator_only() -> None:
    """Another broker may coordinate the transaction by then."""
    world = World(HERE)
    world.begin()
    ending = world.end()
    kept = list(world.appended)
    world.partitions[KEY].led_since += 1
    world.coordinator._on_sent(next(iter(world.coordinator._runtime.shards.values())), ending)
    assert world.appended == kept


def test_an_end_that_is_not_the_present_one_completes_nothing() -> None:
    world = World(HERE)
    world.begin()
    ending = world.end()
    world.run()
    kept = list(world.appended)
    world.coordinator.send_markers(ending)
    world.run()
    assert world.appended[: len(kept)] == kept
    assert [key for key, _ in world.appended[len(kept) :]] == [DATA]


def test_an_end_is_not_sent_where_its_id_is_not_coordinated() -> None:
    world = World(HERE)
    world.begin()
    ending = world.end()
    world.run()
    world.coordinator.close()
    world.coordinator.send_markers(ending)
    assert not world.soon
