"""AlterUserScramCredentials: v0-v0.

Behaviour: sets and deletes SCRAM credentials, and answers when every broker has them (`spread`); of one request all
that isn't refused is changed at once. The client has salted the password and hashed it: neither the request nor the
store has it.

Version notes: v0 is flexible.

Errors: UNACCEPTABLE_CREDENTIAL (name, iterations, salt), UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND,
DUPLICATE_RESOURCE for a user named twice, INVALID_REQUEST for very many users, REQUEST_TIMED_OUT, NOT_CONTROLLER,
COORDINATOR_NOT_AVAILABLE.

KIPs: 554.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lowtide.broker.administration.committing import decide_and_commit
from lowtide.broker.administration.spread import Spread
from lowtide.broker.context import BrokerContext
from lowtide.broker.guards import cluster as guards
from lowtide.broker.guards.audited_requests import CHANGED_USERS
from lowtide.broker.network.routing.large_requests import Bounds
from lowtide.broker.network.routing.routes import HandlerSpec
from lowtide.broker.request_context import RequestContext
from lowtide.protocol.api_keys import ApiKey
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from lowtide.replication.refusal import Refusal
from lowtide.replication.scram_changes import PlannedScram, ScramChange, plan_scram

WHAT: Final = "users of SCRAM"

TIMEOUT_S: Final = 30
"""How long a change may take. The request has none of its own."""

SECRET_BYTES: Final = 32


BOUNDS: Final = Bounds(whole_max=4_000)
"""Each change of a few bytes that is refused is answered by a sentence."""


def handler(broker: BrokerContext, spread: Spread) -> HandlerSpec:
    """The handler over the cluster's metadata."""

    async def handle(
        request: AlterUserScramCredentialsRequest, _context: RequestContext
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
        outcomes: dict[str, Refusal | None]
        if isinstance(done, Refusal):
            outcomes = dict.fromkeys((change.user for change in (*deletions, *upsertions)), done)
        else:
            outcomes = dict(done.outcomes)
            changed = [user for user, refusal in outcomes.items() if refusal is None]
            for user in changed:
                broker.log.info("SCRAM credential changed", user=user)
            if changed:
                await spread.reach_all(broker.metadata.image.revision, WHAT)
        return AlterUserScramCredentialsResponse(
            throttle_time_ms=0,
            results=[
                AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.NONE, error_message=None)
                if refusal is None
                else AlterUserScramCredentialsResult(
                    user=user, error_code=refusal.error_code, error_message=refusal.message
                )
                for user, refusal in outcomes.items()
            ],
        )

    return HandlerSpec(
        key=ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        guard=guards.alter_user_scram_credentials,
        handle_later=handle,
        bounds=BOUNDS,
        audit=CHANGED_USERS,
    )
