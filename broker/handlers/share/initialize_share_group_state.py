"""InitializeShareGroupState: v0-v0.

Behaviour: initializes states of share partitions for a group coordinator, again if the epoch is a later one. A request
in the current epoch changes nothing and succeeds.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, FENCED_STATE_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, POLICY_VIOLATION
if there are too many states, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import StateApi
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.initialize_share_group_state import (
    InitializeShareGroupStateResponse,
    InitializeStatePartitionResult,
    InitializeStateResult,
)

STATE_API = StateApi(
    ApiKey.INITIALIZE_SHARE_GROUP_STATE,
    ShareStates.initialize,
    InitializeShareGroupStateResponse,
    InitializeStateResult,
    InitializeStatePartitionResult,
)
