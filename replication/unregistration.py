"""Plans the removal of a dead broker from the cluster's metadata.

New partitions get no replicas on it. Existing partitions keep it as a replica until they are reassigned, as in Kafka;
it left their ISRs when it died. Unlike Kafka, a live broker is refused, because it would continue to serve. Source:
Kafka's `ReplicationControlManager.unregisterBroker`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowtide.metadata import keys
from lowtide.metadata.changes import ChangePlan, Step
from lowtide.metadata.store import ABSENT, Compare, Delete
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.protocol.types import BrokerId


def plan_unregistration(image: MetadataImage, broker_id: BrokerId) -> ChangePlan | Refusal:
    """Plans the removal of a broker, valid while it is still dead.

    Its registration count is kept (rule DR8): a broker that takes its id later continues the count. Errors:
    BROKER_ID_NOT_REGISTERED, INVALID_REQUEST if it is alive.
    """
    if broker_id in image.brokers:
        return Refusal(
            ErrorCode.INVALID_REQUEST,
            f"Broker {broker_id} is alive. Stop it first, and wait until its session has ended.",
        )
    known = image.known_brokers.get(broker_id)
    if known is None:
        return Refusal(ErrorCode.BROKER_ID_NOT_REGISTERED, f"Broker ID {broker_id} is not currently registered")
    compares = (
        Compare(keys.broker(broker_id), "create", "==", ABSENT),
        Compare(keys.known_broker(broker_id), "modify", "==", known.epoch),
    )
    return ChangePlan((Step((Delete(keys.known_broker(broker_id)),), compares),))
