"""WriteShareGroupState: v0-v1.

Behaviour: the leader of a partition stores changes of its share partitions. Each is answered when it is committed.

Version notes: v1 has the number of complete deliveries.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, also if the state isn't initialized, FENCED_LEADER_EPOCH,
FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 932, 1226.
"""

from __future__ import annotations

from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import StateApi
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.write_share_group_state import (
    WriteShareGroupStateResponse,
    WriteStatePartitionResult,
    WriteStateResult,
)

STATE_API = StateApi(
    ApiKey.WRITE_SHARE_GROUP_STATE,
    ShareStates.write,
    WriteShareGroupStateResponse,
    WriteStateResult,
    WriteStatePartitionResult,
)
