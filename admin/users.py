"""SCRAM credentials of users (KIP-554): describes, sets and deletes them.

The client salts and hashes passwords; it never sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowtide.admin.arguments import named
from lowtide.admin.attempts import Outcome
from lowtide.admin.call import AdminClientBase, outcome
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lowtide.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from lowtide.protocol.scram import ITERATIONS_MIN, ScramMechanism, salted_password

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.types import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """A credential to set. `salt` is random and used once. `repr` hides the password."""

    mechanism: ScramMechanism
    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int = ITERATIONS_MIN


async def describe_scram_users(
    client: AdminClientBase, names: Iterable[str] | None = None, *, timeout: float | None = None
) -> dict[str, dict[ScramMechanism, int] | AdminError]:
    """Returns the SCRAM mechanisms of users (all, or these), with the iterations of each credential."""
    users = None if names is None else [UserName(name=name) for name in named(names)]

    async def ask(handle: BrokerHandle) -> dict[str, dict[ScramMechanism, int] | AdminError]:
        response = await handle.ask(DescribeUserScramCredentialsRequest(users=users))
        if response.error_code:
            raise BrokerAnsweredError(response.error_code, "the users", response.error_message)
        return {
            row.user: BrokerAnsweredError(row.error_code, f"user {row.user}", row.error_message)
            if row.error_code
            else {ScramMechanism(each.mechanism): each.iterations for each in row.credential_infos}
            for row in response.results
        }

    call = client.call(timeout)
    return await call.cluster.ask_any(ask, call.deadline)


async def alter_scram_users(
    client: AdminClientBase, changes: Mapping[str, ScramUpsertion | ScramMechanism], *, timeout: float | None = None
) -> dict[str, AdminError | None]:
    """Sets credentials of users, or deletes those of a mechanism; None means done."""
    call = client.call(timeout)
    upsertions = {
        user: ScramCredentialUpsertion(
            name=user,
            mechanism=change.mechanism,
            iterations=change.iterations,
            salt=change.salt,
            salted_password=salted_password(change.mechanism, change.password, change.salt, change.iterations),
        )
        for user, change in changes.items()
        if isinstance(change, ScramUpsertion)
    }
    deletions = {
        user: ScramCredentialDeletion(name=user, mechanism=change)
        for user, change in changes.items()
        if isinstance(change, ScramMechanism)
    }

    async def send(broker_id: BrokerId, asked: list[str]) -> Mapping[str, Outcome[None]]:
        request = AlterUserScramCredentialsRequest(
            deletions=[deletions[user] for user in asked if user in deletions],
            upsertions=[upsertions[user] for user in asked if user in upsertions],
        )
        response = await call.ask(broker_id, request)
        return {row.user: outcome(f"user {row.user}", row) for row in response.results}

    return await call.each(changes, call.to_controller, send, lambda user: f"user {user}")
