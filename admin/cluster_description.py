"""The cluster as a whole: its brokers, its controller, and its features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.admin.call import AdminClientBase
from lowtide.admin.cluster import BrokerHandle, raise_for_error, view_from
from lowtide.admin.cluster_view import Broker
from lowtide.admin.errors import UnsupportedVersionError
from lowtide.admin.settings import Address
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.types import BrokerId

if TYPE_CHECKING:
    from lowtide.protocol.client.versions import Feature

_FENCED_SINCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The brokers of a cluster.

    `controller_id` is None while there is no controller. Kafka in KRaft mode returns any broker, which forwards
    requests to the controller.
    """

    cluster_id: str | None
    controller_id: BrokerId | None
    brokers: tuple[Broker, ...]
    """Sorted by id."""


async def describe_cluster(
    client: AdminClientBase, *, include_fenced: bool = False, timeout: float | None = None
) -> ClusterDescription:
    """Returns the cluster's id, controller and brokers.

    `include_fenced` adds fenced brokers (Kafka 4.0, KIP-1073). Brokers before Kafka 2.8 return their metadata instead.
    """

    async def ask(handle: BrokerHandle) -> ClusterDescription:
        if handle.versions.highest(ApiKey.DESCRIBE_CLUSTER) < 0 and not include_fenced:
            view = await view_from(handle, ())
            brokers = tuple(view.brokers[broker_id] for broker_id in sorted(view.brokers))
            return ClusterDescription(cluster_id=view.cluster_id, controller_id=view.controller_id, brokers=brokers)
        request = DescribeClusterRequest(
            include_cluster_authorized_operations=False, include_fenced_brokers=include_fenced
        )
        response = await handle.ask(request, at_least=_FENCED_SINCE if include_fenced else 0)
        raise_for_error(handle, response, "the cluster")
        brokers = tuple(
            Broker(broker_id=row.broker_id, address=Address(row.host, row.port), rack=row.rack, is_fenced=row.is_fenced)
            for row in sorted(response.brokers, key=lambda row: row.broker_id)
        )
        controller = response.controller_id if response.controller_id >= 0 else None
        return ClusterDescription(cluster_id=response.cluster_id, controller_id=controller, brokers=brokers)

    call = client.call(timeout)
    return await call.cluster.ask_any(ask, call.deadline)


async def describe_all_brokers(client: AdminClientBase) -> ClusterDescription:
    """Describes the cluster with its fenced brokers, or without them where the cluster is older than Kafka 4.0."""
    try:
        return await describe_cluster(client, include_fenced=True)
    except UnsupportedVersionError:
        return await describe_cluster(client)


async def describe_features(client: AdminClientBase, *, timeout: float | None = None) -> dict[str, Feature]:
    """Returns the features that a broker supports, with the level that the cluster uses of each (KIP-584)."""

    async def ask(handle: BrokerHandle) -> dict[str, Feature]:
        return {feature.name: feature for feature in handle.versions.features}

    call = client.call(timeout)
    return await call.cluster.ask_any(ask, call.deadline)
