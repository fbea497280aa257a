"""Users of SCRAM and quotas: a change is answered when every broker applies it. What changes nothing does not wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lowtide.broker.handlers import alter_client_quotas, alter_user_scram_credentials
from lowtide.metadata.changes import ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from lowtide.runtime.random import Random

REVISION = 7


class World:
    """A broker that can commit, and a record of what it did in which order."""

    def __init__(self) -> None:
        self.steps: list[object] = []

        async def commit(_plan: ChangePlan) -> int:
            self.steps.append("committed")
            return REVISION

        async def wait_for(_revision: int) -> None:
            self.metadata.image = MetadataImage(revision=REVISION)

        async def reach_all(revision: int, what: str) -> None:
            self.steps.append((revision, what))

        self.metadata: Any = SimpleNamespace(image=MetadataImage(revision=1), commit=commit, wait_for=wait_for)
        log = SimpleNamespace(info=lambda *_lines, **_values: None)
        self.broker: Any = SimpleNamespace(metadata=self.metadata, random=Random(1), log=log)
        self.spread: Any = SimpleNamespace(reach_all=reach_all)

    async def ask(self, module: Any, request: Any) -> Any:
        return await module.handler(self.broker, self.spread).handle_later(request, None)


async def test_users_of_scram() -> None:
    world = World()
    change = ScramCredentialUpsertion(
        name="alice", mechanism=1, iterations=4096, salt=b"salt", salted_password=b"x" * 32
    )
    answer = await world.ask(
        alter_user_scram_credentials, AlterUserScramCredentialsRequest(deletions=[], upsertions=[change])
    )
    assert [row.error_code for row in answer.results] == [0]
    assert world.steps == ["committed", (REVISION, "users of SCRAM")]


async def test_a_refused_change_of_users_waits_for_none() -> None:
    world, unknown = World(), ScramCredentialDeletion(name="nobody", mechanism=1)
    answer = await world.ask(
        alter_user_scram_credentials, AlterUserScramCredentialsRequest(deletions=[unknown], upsertions=[])
    )
    assert answer.results[0].error_code == ErrorCode.RESOURCE_NOT_FOUND
    assert [step for step in world.steps if step != "committed"] == []


async def test_quotas() -> None:
    world = World()
    entry = AlterClientQuotasEntry(
        entity=[AlteredQuotaEntity(entity_type="user", entity_name="u")],
        ops=[AlterClientQuotasOperation(key="producer_byte_rate", value=1.0, remove=False)],
    )
    assert (
        await world.ask(alter_client_quotas, AlterClientQuotasRequest(entries=[entry], validate_only=True))
    ).entries[0].error_code == 0
    assert world.steps == []
    assert (
        await world.ask(alter_client_quotas, AlterClientQuotasRequest(entries=[entry], validate_only=False))
    ).entries[0].error_code == 0
    assert world.steps == ["committed", (REVISION, "quotas")]
