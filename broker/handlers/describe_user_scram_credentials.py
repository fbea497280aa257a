"""DescribeUserScramCredentials: v0-v0.

Behaviour: which SCRAM credentials the users have, by mechanism and iterations; nothing of the credentials themselves.
Without names, of all users.

Version notes: v0 is flexible.

Errors: RESOURCE_NOT_FOUND for a user without one, DUPLICATE_RESOURCE for one named twice.

KIPs: 554.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.metadata.scram_image import ScramImage
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

BOUNDS: Final = Bounds(whole_max=2_000)
"""Users whose names are given: a name of a few bytes that isn't known is answered by a sentence. All users are asked
for by none."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """The handler over the cluster's metadata."""

    def handle(
        request: DescribeUserScramCredentialsRequest, _context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        image = broker.metadata.image.scram
        counts = Counter(row.name for row in request.users or ())
        names = counts or dict.fromkeys(user for users in image.users.values() for user in users)
        results = [_described(image, name, counts[name]) for name in names]
        return DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=ErrorCode.NONE, error_message=None, results=results
        )

    return HandlerSpec(
        key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        guard=guards.describe_user_scram_credentials,
        handle=handle,
        bounds=BOUNDS,
    )


def _described(image: ScramImage, name: str, count: int) -> DescribeUserScramCredentialsResult:
    """One row."""
    found = [
        CredentialInfo(mechanism=mechanism, iterations=users[name].credential.iterations)
        for mechanism, users in sorted(image.users.items())
        if name in users
    ]
    code, text = ErrorCode.NONE, None
    if count > 1:
        code, text = (
            ErrorCode.DUPLICATE_RESOURCE,
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}",
        )
    elif not found:
        code, text = ErrorCode.RESOURCE_NOT_FOUND, f"Attempt to describe a user credential that does not exist: {name}"
    return DescribeUserScramCredentialsResult(
        user=name, error_code=code, error_message=text, credential_infos=[] if code else found
    )
