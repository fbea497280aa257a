"""ReadShareGroupStateSummary: v0-v1.

Behaviour: returns the start offsets of share partitions to a group coordinator; -1 if not known yet.

Version notes: v1 has the number of complete deliveries.

Errors: CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, FENCED_LEADER_EPOCH, UNKNOWN_TOPIC_OR_PARTITION, NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE.

KIPs: 932, 1226.
"""

from __future__ import annotations

from lowtide.broker.coordinator.share_state.share_states import ShareStates
from lowtide.broker.handlers.share.state_rows import StateApi
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryResponse,
    SummaryStatePartitionResult,
    SummaryStateResult,
)

STATE_API = StateApi(
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY,
    ShareStates.summarize,
    ReadShareGroupStateSummaryResponse,
    SummaryStateResult,
    SummaryStatePartitionResult,
)
