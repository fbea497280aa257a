"""SCRAM credentials of users (KIP-554): described, set and deleted.

A password is salted and hashed here, and never sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lowtide.admin.anywhere import outcome_of_error, to_the_controller
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.errors import BrokerAnsweredError
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lowtide.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest, UserName
from lowtide.protocol.scram import ITERATIONS_MIN, ScramMechanism, salted_password

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.types import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramUpsertion:
    """A credential to set. `salt` is random, and used once. `repr` doesn't show the password."""

    mechanism: ScramMechanism
    password: str = field(repr=False)
    salt: bytes = field(repr=False)
    iterations: int = ITERATIONS_MIN


async def describe_scram_users(
    cluster: Cluster, users: Iterable[str] | None, deadline: Deadline
) -> dict[str, dict[ScramMechanism, int] | AdminError]:
    """See `AdminClient.describe_scram_users`."""
    names = None if users is None else [UserName(name=name) for name in users]

    async def ask(handle: BrokerHandle) -> dict[str, dict[ScramMechanism, int] | AdminError]:
        response = await handle.ask(DescribeUserScramCredentialsRequest(users=names))
        if response.error_code:
            raise BrokerAnsweredError(response.error_code, "the users", response.error_message)
        return {
            row.user: BrokerAnsweredError(row.error_code, f"user {row.user}", row.error_message)
            if row.error_code
            else {ScramMechanism(each.mechanism): each.iterations for each in row.credential_infos}
            for row in response.results
        }

    return await cluster.ask_any(ask, deadline)


async def alter_scram_users(
    cluster: Cluster, changes: Mapping[str, ScramUpsertion | ScramMechanism], deadline: Deadline
) -> dict[str, AdminError | None]:
    """See `AdminClient.alter_scram_users`."""
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

    async def send(broker_id: BrokerId, asked: list[str], _: int) -> Mapping[str, Outcome[None]]:
        request = AlterUserScramCredentialsRequest(
            deletions=[deletions[user] for user in asked if user in deletions],
            upsertions=[upsertions[user] for user in asked if user in upsertions],
        )
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(request)
        return {
            row.user: outcome_of_error(f"user {row.user}", row.error_code, row.error_message)
            if row.error_code
            else Done(None)
            for row in response.results
        }

    attempts = Attempts[str, None](cluster, deadline, to_the_controller(cluster, deadline), send)
    await attempts.run(list(changes))
    return attempts.results(lambda user: f"user {user}")
