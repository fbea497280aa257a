"""Quotas of users, client ids and addresses: what is set, and changes of it (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final

from lowtide.admin.anywhere import outcome_of_error, to_a_broker
from lowtide.admin.attempts import Attempts, Done, Outcome
from lowtide.admin.cluster import raise_for_error
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest

if TYPE_CHECKING:
    from lowtide.admin.cluster import BrokerHandle, Cluster
    from lowtide.admin.errors import AdminError
    from lowtide.admin.patience import Deadline
    from lowtide.protocol.types import BrokerId


class Default(Enum):
    """In place of a name."""

    DEFAULT = "<default>"
    """Every user, client id or address that has no quota by its name."""


DEFAULT_NAME: Final = Default.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """On what a quota is set: a user, a client id, a client id of a user, or an address; None does not matter."""

    user: str | Default | None = None
    client_id: str | Default | None = None
    ip: str | Default | None = None

    def __str__(self) -> str:
        return ", ".join(f"{kind}={DEFAULT_NAME.value if name is None else name}" for kind, name in self.pairs)

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """As Kafka has it: types with names, None for the default."""
        named = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))
        return [(kind, None if isinstance(name, Default) else name) for kind, name in named if name is not None]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
        """The inverse of `pairs`; a type that is not known is left out."""
        names = {kind: DEFAULT_NAME if name is None else name for kind, name in pairs}
        return cls(user=names.get("user"), client_id=names.get("client-id"), ip=names.get("ip"))


async def describe_quotas(cluster: Cluster, deadline: Deadline) -> dict[QuotaEntity, dict[str, float]]:
    """See `AdminClient.describe_quotas`."""

    async def ask(handle: BrokerHandle) -> dict[QuotaEntity, dict[str, float]]:
        response = await handle.ask(DescribeClientQuotasRequest(components=[], strict=False))
        raise_for_error(handle, response, "the quotas")
        return {
            QuotaEntity.of((part.entity_type, part.entity_name) for part in row.entity): {
                value.key: value.value for value in row.values
            }
            for row in response.entries or ()
        }

    quotas: dict[QuotaEntity, dict[str, float]] = await cluster.ask_any(ask, deadline)
    return quotas


async def alter_quotas(
    cluster: Cluster,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    deadline: Deadline,
    *,
    validate_only: bool = False,
) -> dict[QuotaEntity, AdminError | None]:
    """See `AdminClient.alter_quotas`."""

    async def send(broker_id: BrokerId, asked: list[QuotaEntity], _: int) -> Mapping[QuotaEntity, Outcome[None]]:
        rows = [
            AlterClientQuotasEntry(
                entity=[AlteredQuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.pairs],
                ops=[
                    AlterClientQuotasOperation(
                        key=key, value=0.0 if value is None else float(value), remove=value is None
                    )
                    for key, value in changes[entity].items()
                ],
            )
            for entity in asked
        ]
        async with cluster.broker(broker_id, deadline) as handle:
            response = await handle.ask(AlterClientQuotasRequest(entries=rows, validate_only=validate_only))
        found: dict[QuotaEntity, Outcome[None]] = {}
        for row in response.entries:
            entity = QuotaEntity.of((part.entity_type, part.entity_name) for part in row.entity)
            found[entity] = (
                outcome_of_error(entity, row.error_code, row.error_message) if row.error_code else Done(None)
            )
        return found

    attempts = Attempts[QuotaEntity, None](cluster, deadline, to_a_broker(cluster, deadline), send)
    await attempts.run(list(changes))
    return attempts.results(lambda entity: f"the quotas of {entity}")
