"""ReadShareGroupState: v0-v0.

Behaviour: the leader of a partition reads the states of its share partitions. A leader of a later epoch fences the
earlier ones.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, also if the state isn't initialized, FENCED_LEADER_EPOCH,
UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import StateApi
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.read_share_group_state import (
    ReadShareGroupStateResponse,
    ReadStatePartitionResult,
    ReadStateResult,
)

STATE_API = StateApi(
    ApiKey.READ_SHARE_GROUP_STATE,
    ShareStates.read,
    ReadShareGroupStateResponse,
    ReadStateResult,
    ReadStatePartitionResult,
)
