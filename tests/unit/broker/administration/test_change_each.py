"""Requests that change the configurations of many resources take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from lowtide.broker.administration.config_administrator import change_each
from lowtide.broker.config.resources import RESOURCES_AT_ONCE
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.messages.alter_configs import AlterConfigsResource, AlterConfigsResourceResponse
from lowtide.replication.refusal import Refusal

MANY = 4 * RESOURCES_AT_ONCE
REFUSAL = Refusal(ErrorCode.INVALID_CONFIG, "no")


def resources(prefix: str, count: int) -> list[AlterConfigsResource]:
    return [
        AlterConfigsResource(resource_type=2, resource_name=f"{prefix}{number}", configs=[]) for number in range(count)
    ]


async def changed(
    rows: list[AlterConfigsResource],
    change: Callable[[AlterConfigsResource], Awaitable[Refusal | None]],
    lane: asyncio.Lock,
) -> list[AlterConfigsResourceResponse]:
    return await change_each(rows, change, lane, AlterConfigsResourceResponse)


async def test_many_large_requests_hold_the_loop_for_no_longer_than_one() -> None:
    lane, passes, looks = asyncio.Lock(), [0], True

    async def change(_row: AlterConfigsResource) -> Refusal | None:
        passes[-1] += 1
        return None

    async def count_passes() -> None:
        while looks:
            await asyncio.sleep(0)
            passes.append(0)

    counting = asyncio.create_task(count_passes())
    await asyncio.gather(*(changed(resources(f"{request}-", MANY), change, lane) for request in range(10)))
    looks = False
    await counting
    assert sum(passes) == 10 * MANY
    assert max(passes) <= 2 * RESOURCES_AT_ONCE


async def test_a_small_request_does_not_wait_for_large_ones() -> None:
    lane = asyncio.Lock()

    async def change(row: AlterConfigsResource) -> Refusal | None:
        return REFUSAL if row.resource_name == "a1" else None

    async with lane:
        outcomes = await changed(resources("a", RESOURCES_AT_ONCE), change, lane)
    assert [row.error_code for row in outcomes] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_CONFIG,
        *[ErrorCode.NONE] * (RESOURCES_AT_ONCE - 2),
    ]


async def test_each_row_has_its_outcome_in_order_and_a_resource_named_twice_is_refused() -> None:
    async def change(_row: AlterConfigsResource) -> Refusal | None:
        return None

    rows = [*resources("a", MANY), *resources("a", 1)]
    outcomes = await changed(rows, change, asyncio.Lock())
    assert [row.resource_name for row in outcomes] == [row.resource_name for row in rows]
    assert [index for index, row in enumerate(outcomes) if row.error_code] == [0, MANY]
