"""Quotas of users, client ids and addresses: describes and changes them (KIP-546)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from lowtide.admin.attempts import Outcome
from lowtide.admin.call import AdminClientBase, outcome
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest

if TYPE_CHECKING:
    from lowtide.admin.errors import AdminError
    from lowtide.protocol.types import BrokerId


class Default(Enum):
    """Stands in the place of a name."""

    DEFAULT = "<default>"
    """The default for all users, client ids or addresses without their own quota."""


DEFAULT_NAME: Final = Default.DEFAULT


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaEntity:
    """A user, a client id, a client id of a user, or an address that has quotas."""

    user: str | Default | None = None
    client_id: str | Default | None = None
    ip: str | Default | None = None

    def __str__(self) -> str:
        return ", ".join(f"{kind}={DEFAULT_NAME.value if name is None else name}" for kind, name in self.pairs)

    @property
    def pairs(self) -> list[tuple[str, str | None]]:
        """Kafka's form: types with names, None for the default."""
        named = (("user", self.user), ("client-id", self.client_id), ("ip", self.ip))
        return [(kind, None if isinstance(name, Default) else name) for kind, name in named if name is not None]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity:
        """Returns the entity of some pairs. Unknown types are ignored."""
        names = {kind: DEFAULT_NAME if name is None else name for kind, name in pairs}
        return cls(user=names.get("user"), client_id=names.get("client-id"), ip=names.get("ip"))


async def describe_quotas(
    client: AdminClientBase, *, timeout: float | None = None
) -> dict[QuotaEntity, dict[str, float]]:
    """Returns all quotas that are set on users, client ids and addresses."""
    request = DescribeClientQuotasRequest(components=[], strict=False)
    response = await client.call(timeout).ask_any(request, "the quotas")
    return {_entity(row): {value.key: value.value for value in row.values} for row in response.entries or ()}


def _entity(row: Any) -> QuotaEntity:
    return QuotaEntity.of((part.entity_type, part.entity_name) for part in row.entity)


async def alter_quotas(
    client: AdminClientBase,
    changes: Mapping[QuotaEntity, Mapping[str, float | None]],
    *,
    validate_only: bool = False,
    timeout: float | None = None,
) -> dict[QuotaEntity, AdminError | None]:
    """Sets quotas by key, and removes those whose limit is None; other keys stay.

    All changes of an entity apply, or none.
    """
    call = client.call(timeout)

    async def send(broker_id: BrokerId, asked: list[QuotaEntity]) -> Mapping[QuotaEntity, Outcome[None]]:
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
        response = await call.ask(broker_id, AlterClientQuotasRequest(entries=rows, validate_only=validate_only))
        return {_entity(row): outcome(_entity(row), row) for row in response.entries}

    return await call.each(changes, call.to_broker(), send, lambda entity: f"the quotas of {entity}")
