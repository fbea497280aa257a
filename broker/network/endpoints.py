"""The brokers that a client can reach, at the listener of the same name as the one that the client used.

A broker without such a listener does not exist for the client: it is not in the list of brokers, its replicas are
offline, and the partitions that it leads have LISTENER_NOT_FOUND. Source: Kafka's KRaftMetadataCache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.broker.request_context import Client
from lowtide.metadata.broker_image import BrokerImage
from lowtide.metadata.image import MetadataImage, PartitionImage, TopicImage
from lowtide.metadata.records import NO_LEADER, Listener
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.types import BrokerId

T = TypeVar("T")
Address: TypeAlias = tuple[str, int]


class MadeOnce(dict[str, T]):
    """A value for each listener name, created at its first use. The broker's listeners bound its size."""

    def __init__(self, make: Callable[[str], T]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, listener_name: str) -> T:
        made = self[listener_name] = self._make(listener_name)
        return made


def endpoint_of(broker: BrokerImage, listener_name: str) -> Listener | None:
    """Returns the address at which clients of a listener reach a broker; None if they can't.

    An empty name means the broker's first advertised listener.
    """
    if not listener_name:
        return broker.listeners[0] if broker.is_reachable else None
    return broker.listener(listener_name)


def endpoints_for(image: MetadataImage, listener_name: str) -> dict[BrokerId, Listener]:
    """Returns the addresses of the live brokers that clients of a listener can reach, by ascending id."""
    found = {}
    for broker_id in sorted(image.brokers):
        endpoint = endpoint_of(image.brokers[broker_id], listener_name)
        if endpoint is not None:
            found[broker_id] = endpoint
    return found


def local_endpoint(config: BrokerConfig, client: Client) -> Address | None:
    """Returns the local address of the client's connection if the broker advertises that; otherwise None."""
    return client.local_address if config.advertises_local_address else None


def with_local(
    endpoints: Mapping[BrokerId, Listener], here: BrokerId, local: Address | None
) -> Mapping[BrokerId, Listener]:
    """Returns the endpoints with `local` as the address of this broker; unchanged if `local` is None."""
    if local is None or here not in endpoints:
        return endpoints
    return {**endpoints, here: replace(endpoints[here], host=local[0], port=local[1])}


def controller_for(image: MetadataImage, endpoints: Mapping[BrokerId, Listener]) -> BrokerId:
    """Returns the controller's id; -1 if clients of this listener can't reach it."""
    return image.controller_id if image.controller_id in endpoints else NO_LEADER


def offline_replicas(
    image: MetadataImage,
    topic: TopicImage,
    number: int,
    endpoints: Mapping[BrokerId, Listener],
    failed_here: tuple[BrokerId, Collection[tuple[str, int]]],
) -> list[BrokerId]:
    """Returns the offline replicas of a partition: broker gone or unreachable, or log directory failed.

    `failed_here`: this broker, and the partitions of its failed directories, which it knows before the metadata do.
    """
    here, failed = failed_here
    return [
        replica
        for replica in topic.partitions[number].replicas
        if replica not in endpoints
        or not image.replica_is_online(replica, topic.topic_id, number)
        or (replica == here and (topic.name, number) in failed)
    ]


def leader_for(
    image: MetadataImage, state: PartitionImage, endpoints: Mapping[BrokerId, Listener], offline: Collection[BrokerId]
) -> tuple[BrokerId, ErrorCode]:
    """Returns the leader and NONE, or -1 and an error if clients of this listener can't reach it.

    `offline` is the result of `offline_replicas`.
    """
    leader = state.leader
    if leader in endpoints and leader not in offline:
        return leader, ErrorCode.NONE
    out_of_reach = leader in image.brokers and leader not in endpoints
    return NO_LEADER, ErrorCode.LISTENER_NOT_FOUND if out_of_reach else ErrorCode.LEADER_NOT_AVAILABLE
