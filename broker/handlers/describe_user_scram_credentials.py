"""DescribeUserScramCredentials: v0-v0.

Behaviour: returns the mechanisms and iterations of users' SCRAM credentials, and nothing of the credentials themselves.
Without names, all users are described.

Version notes: v0 is flexible.

Errors: RESOURCE_NOT_FOUND for a user without credentials, DUPLICATE_RESOURCE for one that is listed twice.

KIPs: 554.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from lowtide.broker.administration.committing import outcome_fields
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.guard import on_cluster
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
from lowtide.replication.refusal import Refusal

BOUNDS: Final = Bounds(whole_max=2_000)
"""The number of names in a request: each unknown name, of a few bytes, is answered with a sentence. A request without
names asks for all users."""


def handler(broker: BrokerContext) -> HandlerSpec:
    """Returns the handler."""

    def handle(
        request: DescribeUserScramCredentialsRequest, _context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        image = broker.metadata.image.scram
        counts = Counter(row.name for row in request.users or ())
        names = counts or dict.fromkeys(user for users in image.users.values() for user in users)
        results = [_described(image, name, counts[name]) for name in names]
        return DescribeUserScramCredentialsResponse(throttle_time_ms=0, **outcome_fields(None), results=results)

    return HandlerSpec(
        key=ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        guard=on_cluster(Operation.DESCRIBE, refused),
        handle=handle,
        bounds=BOUNDS,
    )


def refused(
    request: DescribeUserScramCredentialsRequest, _version: int, refusal: Refusal
) -> DescribeUserScramCredentialsResponse:
    """Returns the answer to a request that is refused: in each row too."""
    outcome = outcome_fields(refusal)
    rows = [
        DescribeUserScramCredentialsResult(user=row.name, **outcome, credential_infos=[]) for row in request.users or ()
    ]
    return DescribeUserScramCredentialsResponse(throttle_time_ms=0, **outcome, results=rows)


def _described(image: ScramImage, name: str, count: int) -> DescribeUserScramCredentialsResult:
    found = [
        CredentialInfo(mechanism=mechanism, iterations=users[name].credential.iterations)
        for mechanism, users in sorted(image.users.items())
        if name in users
    ]
    refusal = None
    if count > 1:
        text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {name}"
        refusal = Refusal(ErrorCode.DUPLICATE_RESOURCE, text)
    elif not found:
        text = f"Attempt to describe a user credential that does not exist: {name}"
        refusal = Refusal(ErrorCode.RESOURCE_NOT_FOUND, text)
    return DescribeUserScramCredentialsResult(
        user=name, **outcome_fields(refusal), credential_infos=[] if refusal else found
    )
