"""AlterUserScramCredentials: v0-v0.

Behaviour: sets and deletes SCRAM credentials. The response is sent when every broker has them (`spread`). All valid
changes of a request are made together. The client has salted and hashed the passwords, so neither the request nor the
store contains them.

Version notes: v0 is flexible.

Errors: UNACCEPTABLE_CREDENTIAL (name, iterations, salt), UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND,
DUPLICATE_RESOURCE for a user that is listed twice, INVALID_REQUEST for too many users, REQUEST_TIMED_OUT,
NOT_CONTROLLER, COORDINATOR_NOT_AVAILABLE.

KIPs: 554.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit, outcome_fields
from lowtide.broker.administration.spread import Spread
from lowtide.broker.authorizer.resources import Operation
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards.audited_requests import CHANGED_USERS
from lowtide.broker.guards.guard import on_cluster
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.scram_changes import PlannedScram, ScramChange, plan_scram

WHAT: Final = "users of SCRAM"

TIMEOUT_S: Final = 30
"""How long a change may take: the request does not say."""

SECRET_BYTES: Final = 32

BOUNDS: Final = Bounds(whole_max=4_000)
"""Each refused change, of a few bytes, is answered with a sentence."""


def handler(broker: BrokerContext, spread: Spread) -> HandlerSpec:
    """Returns the handler."""

    async def handle(
        request: AlterUserScramCredentialsRequest, context: RequestContext
    ) -> AlterUserScramCredentialsResponse:
        deletions = [ScramChange(row.name, row.mechanism) for row in request.deletions]
        upsertions = [
            ScramChange(row.name, row.mechanism, row.iterations, bytes(row.salt), bytes(row.salted_password))
            for row in request.upsertions
        ]
        secret = broker.random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")

        def decide() -> PlannedScram:
            return plan_scram(broker.metadata.image.scram, deletions, upsertions, secret)

        done = await decide_and_commit(broker.metadata, decide, asyncio.get_running_loop().time() + TIMEOUT_S)
        if isinstance(done, Refusal):
            return refused(request, context.api_version, done)
        changed = [user for user, refusal in done.outcomes.items() if refusal is None]
        for user in changed:
            broker.log.info("SCRAM credential changed", user=user)
        if changed:
            await spread.reach_all(broker.metadata.image.revision, WHAT)
        return _answered(done.outcomes)

    return HandlerSpec(
        key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        guard=on_cluster(Operation.ALTER, refused),
        handle_later=handle,
        bounds=BOUNDS,
        audit=CHANGED_USERS,
    )


def refused(
    request: AlterUserScramCredentialsRequest, _version: int, refusal: Refusal
) -> AlterUserScramCredentialsResponse:
    """Returns the answer to a request that is refused as a whole."""
    names = [*(row.name for row in request.deletions), *(row.name for row in request.upsertions)]
    return _answered(dict.fromkeys(names, refusal))


def _answered(outcomes: Mapping[str, Refusal | None]) -> AlterUserScramCredentialsResponse:
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[
            AlterUserScramCredentialsResult(user=user, **outcome_fields(refusal)) for user, refusal in outcomes.items()
        ],
    )
