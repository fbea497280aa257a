"""Any broker changes rules, configurations and quotas, also when they are there already."""

from __future__ import annotations

import asyncio
from typing import Any

from lowtide import LowtideCluster
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasOperation,
    AlterClientQuotasRequest,
    AlteredQuotaEntity,
)
from lowtide.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from lowtide.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from lowtide.simulation.client import WireClient

CONFIG = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOPIC, LITERAL, READ, ALLOW, SET, BROKER = 2, 3, 3, 3, 0, 4

ACL = AclCreation(
    resource_type=TOPIC,
    resource_name="t",
    resource_pattern_type=LITERAL,
    principal="User:alice",
    host="*",
    operation=READ,
    permission_type=ALLOW,
)
KEY = AlterableConfig(name="log.retention.ms", config_operation=SET, value="12345")
QUOTA = AlterClientQuotasEntry(
    entity=[AlteredQuotaEntity(entity_type="user", entity_name="alice")],
    ops=[AlterClientQuotasOperation(key="producer_byte_rate", value=1000.0, remove=False)],
)
REQUESTS: tuple[tuple[Any, int], ...] = (
    (CreateAclsRequest(creations=[ACL]), 3),
    (
        IncrementalAlterConfigsRequest(
            resources=[AlterConfigsResource(resource_type=BROKER, resource_name="", configs=[KEY])], validate_only=False
        ),
        1,
    ),
    (AlterClientQuotasRequest(entries=[QUOTA], validate_only=False), 1),
)


async def outcomes(address: str) -> list[int]:
    """Returns what one broker answers, to each request twice."""
    host, _, port = address.partition(":")
    client = await WireClient.connect(host, int(port))
    found = []
    for request, version in REQUESTS * 2:
        answer = await client.send(request, version)
        (row,) = next(getattr(answer, name) for name in ("results", "responses", "entries") if hasattr(answer, name))
        found.append(row.error_code)
    client.close()
    return found


def test_each_broker_says_that_it_is_done() -> None:
    with LowtideCluster(brokers=3, config=CONFIG) as three:
        for broker_id in three.broker_ids:
            assert asyncio.run(outcomes(three.address(broker_id))) == [ErrorCode.NONE] * 2 * len(REQUESTS)
