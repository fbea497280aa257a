"""DeleteShareGroupState: v0-v0.

Behaviour: deletes states of share partitions for a group coordinator. Deleting a state that does not exist succeeds.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
COORDINATOR_NOT_AVAILABLE.

KIPs: 932.
"""

from __future__ import annotations

from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import StateApi
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.delete_share_group_state import (
    DeleteShareGroupStateResponse,
    DeleteStatePartitionResult,
    DeleteStateResult,
)

STATE_API = StateApi(
    ApiKey.DELETE_SHARE_GROUP_STATE,
    ShareStates.delete,
    DeleteShareGroupStateResponse,
    DeleteStateResult,
    DeleteStatePartitionResult,
)
