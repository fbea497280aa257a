"""Brokers in an image: requests to stop, replicas in failed log directories, replicas that lost something."""

from __future__ import annotations

import pytest

from lowtide.metadata import keys
from lowtide.metadata.broker_image import BrokerImage, encode_replicas
from lowtide.metadata.engine import Engine
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.metadata.image_change import apply_batch, difference, load_image
from lowtide.metadata.records import BrokerRecord, FeaturesRecord, Listener, encode
from lowtide.metadata.store import Delete, Put

PREFIX = b"/lowtide/"
TOPIC, OTHER = b"A" * 16, b"B" * 16
INSIDE, OUTSIDE = Listener("INSIDE", "10.0.0.1", 9093), Listener("OUTSIDE", "example", 9092)


class Cluster:
    """An engine and the image that follows it; a loaded image must always be equal."""

    def __init__(self) -> None:
        self.engine = Engine(boot=1, revision=0, keys=[])
        self.image = MetadataImage()

    def change(self, *operations: Put | Delete) -> ImageDelta:
        staged = self.engine.stage()
        prefixed = [Put(PREFIX + o.key, o.value) if isinstance(o, Put) else Delete(PREFIX + o.key) for o in operations]
        self.engine.evaluate(staged, (), prefixed, ())
        self.engine.commit(staged)
        before = self.image
        (batch,) = staged.batches
        self.image, delta = apply_batch(before, batch, prefix=PREFIX)
        loaded = load_image(self.engine.range(PREFIX), self.engine.revision, prefix=PREFIX)
        assert loaded == self.image
        assert difference(before, loaded) == delta
        return delta


def registered(broker_id: int, **more: object) -> Put:
    return Put(keys.broker(broker_id), encode(BrokerRecord("i", (OUTSIDE, INSIDE), **more)))


def test_a_registration_is_its_brokers_epoch_until_it_ends() -> None:
    """A broker without one has no epoch, and none of its replicas is online."""
    cluster = Cluster()
    assert cluster.image.broker_epoch(1) is None
    cluster.change(registered(1))
    assert cluster.image.broker_epoch(1) == 1
    assert cluster.image.may_be_in_sync(1, TOPIC, 0)
    cluster.change(Delete(keys.broker(1)))
    assert cluster.image.broker_epoch(1) is None
    assert not cluster.image.replica_is_online(1, TOPIC, 0)
    assert not cluster.image.may_be_in_sync(1, TOPIC, 0)


def test_the_address_for_other_brokers() -> None:
    """It is the listener that the broker names for them, or its first."""
    cluster = Cluster()
    cluster.change(registered(1), registered(2, inter_broker_listener="INSIDE"), registered(3, metadata_level=0))
    assert cluster.image.brokers[1].inter_broker == OUTSIDE
    assert cluster.image.brokers[2].inter_broker == INSIDE
    assert cluster.image.brokers[2].listener("OUTSIDE") == OUTSIDE
    assert cluster.image.brokers[2].listener("NOWHERE") is None
    assert [cluster.image.brokers[each].metadata_level for each in (1, 2, 3)] == [1, 1, 0]


def test_a_wish_to_stop_belongs_to_a_registration() -> None:
    """Replicas of such a broker are online, but join no ISR; a new registration does not inherit the wish."""
    cluster = Cluster()
    cluster.change(registered(1), registered(2))
    assert cluster.change(Put(keys.shutdown(1), b"1")).brokers_changed == (1,)
    assert [cluster.image.brokers[each].in_controlled_shutdown for each in (1, 2)] == [True, False]
    assert cluster.image.replica_is_online(1, TOPIC, 0)
    assert not cluster.image.may_be_in_sync(1, TOPIC, 0)
    assert cluster.image.may_be_in_sync(2, TOPIC, 0)
    cluster.change(Delete(keys.broker(1)))
    cluster.change(registered(1))
    assert not cluster.image.brokers[1].in_controlled_shutdown
    assert cluster.change(Delete(keys.shutdown(1))).is_empty


def test_a_wish_and_its_registration_may_come_in_one_revision() -> None:
    """This holds for any order of the keys."""
    cluster = Cluster()
    cluster.change(Put(keys.shutdown(1), b"1"), registered(1))
    assert cluster.image.brokers[1].in_controlled_shutdown


def test_replicas_in_failed_log_directories_are_offline() -> None:
    """Those and no others."""
    cluster = Cluster()
    cluster.change(registered(1), registered(2))
    offline = encode_replicas({TOPIC: frozenset({0, 3}), OTHER: frozenset()})
    assert cluster.change(Put(keys.offline(1), encode(offline))).brokers_changed == (1,)
    image = cluster.image
    assert [image.replica_is_online(1, TOPIC, number) for number in range(4)] == [False, True, True, False]
    assert not image.may_be_in_sync(1, TOPIC, 3)
    assert image.may_be_in_sync(1, OTHER, 0)
    assert image.replica_is_online(2, TOPIC, 0)
    assert cluster.change(Delete(keys.offline(1))).brokers_changed == (1,)
    assert cluster.image.replica_is_online(1, TOPIC, 0)


def test_a_stale_replica_stays_stale_until_it_has_joined_again() -> None:
    """Replicas that joined under a registration before the mark are stale.

    One that joined under the registration with the mark is not.
    """
    cluster = Cluster()
    cluster.change(registered(1))
    cluster.change(Delete(keys.broker(1)))
    mark = Put(keys.stale(1, 7), encode(encode_replicas({TOPIC: frozenset({2})})))
    assert cluster.change(mark, registered(1)).brokers_changed == (1,)
    image = cluster.image
    assert image.broker_epoch(1) == 3
    assert image.is_stale(1, TOPIC, 2, member_epoch=1)
    assert not image.is_stale(1, TOPIC, 2, member_epoch=3)
    assert not image.is_stale(1, TOPIC, 1, member_epoch=1)
    assert not image.is_stale(1, OTHER, 2, member_epoch=1)
    assert not image.is_stale(2, TOPIC, 2, member_epoch=1)


def test_a_later_registration_removes_no_mark() -> None:
    """Marks accumulate, and are removed one by one."""
    cluster = Cluster()
    cluster.change(Put(keys.stale(1, 7), encode(encode_replicas({TOPIC: frozenset({2})}))), registered(1))
    cluster.change(Delete(keys.broker(1)))
    cluster.change(Put(keys.stale(1, 8), encode(encode_replicas({TOPIC: frozenset({0})}))), registered(1))
    assert cluster.image.is_stale(1, TOPIC, 2, member_epoch=0)
    assert cluster.image.is_stale(1, TOPIC, 0, member_epoch=2)
    assert not cluster.image.is_stale(1, TOPIC, 2, member_epoch=2)
    assert cluster.change(Delete(keys.stale(1, 7))).brokers_changed == (1,)
    assert not cluster.image.is_stale(1, TOPIC, 2, member_epoch=0)
    assert cluster.image.is_stale(1, TOPIC, 0, member_epoch=0)
    cluster.change(Delete(keys.stale(1, 8)))
    assert cluster.image.stale_marks == {}


def test_features_of_the_whole_cluster() -> None:
    """A feature is off until the cluster has agreed on it."""
    cluster = Cluster()
    assert not cluster.image.log_start_reporting
    assert cluster.change(Put(keys.FEATURES, encode(FeaturesRecord(log_start_reporting=1))))
    assert cluster.image.log_start_reporting
    assert cluster.image.features_revision == 1


def test_a_broker_without_listeners_has_no_address() -> None:
    """Tests have such brokers; asking for their address is an error."""
    with pytest.raises(IndexError):
        _ = BrokerImage(1, 1, ()).inter_broker


def test_a_broker_is_known_until_it_is_unregistered() -> None:
    """Its last registration is kept: its address, and its epoch."""
    cluster = Cluster()
    known = Put(keys.known_broker(1), encode(BrokerRecord("i", (OUTSIDE,), rack="r")))
    assert cluster.change(registered(1), known).brokers_changed == (1,)
    assert cluster.image.known_brokers[1].epoch == cluster.image.brokers[1].epoch == 1
    assert cluster.image.fenced_brokers == {}
    cluster.change(Delete(keys.broker(1)))
    assert cluster.image.is_known(1)
    assert not cluster.image.replica_is_online(1, TOPIC, 0)
    assert [(broker.broker_id, broker.rack) for broker in cluster.image.fenced_brokers.values()] == [(1, "r")]
    cluster.change(registered(1), known)
    assert cluster.image.known_brokers[1].epoch == cluster.image.brokers[1].epoch == 3
    cluster.change(Delete(keys.broker(1)))
    assert cluster.change(Delete(keys.known_broker(1))).brokers_changed == (1,)
    assert not cluster.image.is_known(1)
