"""The cluster as a whole: its brokers, its controller, and the features that it has agreed on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lowtide.admin.cluster import BrokerHandle, Cluster, raise_for_error, view_from
from lowtide.admin.cluster_view import Broker
from lowtide.admin.settings import Address
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.describe_cluster import DescribeClusterRequest
from lowtide.protocol.types import BrokerId

if TYPE_CHECKING:
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.client.versions import Feature

_FENCED_SINCE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """Who there is.

    `controller_id` is None while there is none; Kafka without ZooKeeper tells any broker, which passes requests on.
    """

    cluster_id: str | None
    controller_id: BrokerId | None
    brokers: tuple[Broker, ...]
    """By their ids."""


async def describe_cluster(cluster: Cluster, deadline: Deadline, *, include_fenced: bool = False) -> ClusterDescription:
    """See `AdminClient.describe_cluster`.

    Brokers that don't know the question are asked for their metadata (before Kafka 2.8).
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

    description: ClusterDescription = await cluster.ask_any(ask, deadline)
    return description


async def describe_features(cluster: Cluster, deadline: Deadline) -> dict[str, Feature]:
    """See `AdminClient.describe_features`."""

    async def ask(handle: BrokerHandle) -> dict[str, Feature]:
        return {feature.name: feature for feature in handle.versions.features}

    features: dict[str, Feature] = await cluster.ask_any(ask, deadline)
    return features
