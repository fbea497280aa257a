"""Guards of what is asked about the users of a cluster. Source: Kafka's `KafkaApis` and `ControllerApis`."""

from __future__ import annotations

from typing import Final

from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.guards.guard import Asker, Verdict
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from lowtide.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

_DENIED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT: Final = "Cluster authorization failed."


def describe_user_scram_credentials(request: DescribeUserScramCredentialsRequest, asker: Asker) -> Verdict:
    """DESCRIBE on the cluster."""
    if asker.may_cluster(Operation.DESCRIBE):
        return Verdict(request)
    rows = [
        DescribeUserScramCredentialsResult(user=row.name, error_code=_DENIED, error_message=_TEXT, credential_infos=[])
        for row in request.users or ()
    ]
    return Verdict(
        answer=DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=_DENIED, error_message=_TEXT, results=rows
        )
    )


def alter_user_scram_credentials(request: AlterUserScramCredentialsRequest, asker: Asker) -> Verdict:
    """ALTER on the cluster."""
    if asker.may_cluster(Operation.ALTER):
        return Verdict(request)
    names = dict.fromkeys([*(row.name for row in request.deletions), *(row.name for row in request.upsertions)])
    rows = [AlterUserScramCredentialsResult(user=name, error_code=_DENIED, error_message=_TEXT) for name in names]
    return Verdict(answer=AlterUserScramCredentialsResponse(throttle_time_ms=0, results=rows))
