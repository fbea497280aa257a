"""Which replica a consumer in a rack is to read from (KIP-392)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lowtide.metadata.image import MetadataImage
from lowtide.replication.follower_reads import NO_REPLICA, preferred_read_replica
from lowtide.replication.leadership import FollowerFetch, Leadership

from .leaders import FakeLog, image_of, leads, partition_of

BROKERS = {1: 1, 2: 2, 3: 3}


def racks(image: MetadataImage, **of: str) -> MetadataImage:
    brokers = {
        number: msgspec.structs.replace(each, rack=of.get(f"broker_{number}")) for number, each in image.brokers.items()
    }
    return msgspec.structs.replace(image, brokers=brokers)


IMAGE = racks(image_of(10, BROKERS), broker_1="a", broker_2="b", broker_3="b")


def led(
    *, isr: tuple[int, ...] = (1, 2, 3), ends: tuple[int, int] = (80, 90), starts: tuple[int, int] = (20, 20)
) -> Leadership:
    """Broker 1 leads a log from 20 to 100; 2 and 3 have fetched up to `ends`."""
    log = FakeLog(log_start_offset=20, log_end_offset=100)
    leadership = leads(log, partition_of(isr, isr), IMAGE)
    for broker_id, end, start in zip((2, 3), ends, starts, strict=True):
        leadership.note_fetch(FollowerFetch(broker_id, broker_id, end, start, 5, 5), IMAGE, 1)
    return leadership


def chosen(leadership: Leadership, offset: int = 50, *, rack: str = "b", image: MetadataImage = IMAGE) -> int:
    return preferred_read_replica(leadership, image, rack, offset)


def test_the_one_in_the_rack_that_has_most() -> None:
    assert chosen(led()) == 3
    assert chosen(led(ends=(90, 80))) == 2
    assert chosen(led(ends=(90, 90))) == 2, "the first of those that have the same"


def test_the_leader_for_its_own_rack_and_for_racks_without_a_replica() -> None:
    assert chosen(led(), rack="a") == NO_REPLICA
    assert chosen(led(), rack="c") == NO_REPLICA
    same = racks(IMAGE, broker_1="b", broker_2="b", broker_3="b")
    assert chosen(led(), image=same) == NO_REPLICA
    without = msgspec.structs.replace(IMAGE, brokers={number: IMAGE.brokers[number] for number in (2, 3)})
    assert chosen(led(), image=without) == 3, "of the leader nothing is known any more"


@pytest.mark.parametrize(("offset", "wanted"), [(80, 3), (90, 3), (91, NO_REPLICA)])
def test_only_one_that_has_the_offset(offset: int, wanted: int) -> None:
    assert chosen(led(), offset) == wanted


@pytest.mark.parametrize(
    ("changed", "wanted"),
    [
        ({"starts": (20, 19)}, 2),  # A delete has not reached it.
        ({"starts": (20, 21)}, 3),
        ({"isr": (1, 2)}, 2),
        ({"isr": (1,)}, NO_REPLICA),
    ],
)
def test_only_one_in_sync_that_has_every_delete(changed: dict[str, Any], wanted: int) -> None:
    assert chosen(led(**changed)) == wanted


def test_only_one_in_the_rack_whose_broker_is_registered_as_it_fetched() -> None:
    assert chosen(led(), image=racks(IMAGE, broker_1="a", broker_2="b", broker_3="c")) == 2
    assert chosen(led(), image=racks(IMAGE, broker_1="a", broker_2="c", broker_3="b")) == 3, "behind one that isn't"
    gone = msgspec.structs.replace(IMAGE, brokers={number: IMAGE.brokers[number] for number in (1, 2)})
    assert chosen(led(), image=gone) == 2
    again = racks(image_of(20, {1: 1, 2: 2, 3: 13}), broker_1="a", broker_2="b", broker_3="b")
    assert chosen(led(), image=again) == 2
