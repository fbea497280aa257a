"""A streams group (KIP-1071) during a soak: one member, by heartbeats, which leaves and comes again.

It has a topology that counts words, so the coordinator creates its two internal topics. The member must get all tasks.
"""

from __future__ import annotations

import time

from lowtide.protocol.errors import ErrorCode
from tests.clients.streams_member import heartbeat, word_count

from .programs import RETAINED
from .run import LOADING, Run

GROUP, VERSION = "words", 1
HEARTBEAT_EACH_S = 3.0
TASKS_LIMIT_S = 300.0
"""Within which a member that joins has all tasks: brokers restart, and topics are created."""

AWAY_S = 10.0


async def stream(run: Run) -> None:
    """Joins, has all tasks, stays, leaves, and begins again. Errors: AssertionError if tasks don't come."""
    while run.goes_on:
        await live(run, time.monotonic() + run.options.member_minutes * 60)
        await run.pause(AWAY_S)


async def live(run: Run, until_s: float) -> None:
    epoch, tasks, joined_s = 0, 0, time.monotonic()
    topology = word_count(RETAINED, GROUP)
    while run.goes_on and (time.monotonic() < until_s or not tasks):
        request = heartbeat(GROUP, epoch, None if epoch else topology)
        answer = await run.ask_coordinator(GROUP, request, VERSION)
        if answer is not None and answer.error_code == ErrorCode.NONE:
            epoch = answer.member_epoch
            if answer.active_tasks is not None:
                tasks = sum(len(row.partitions) for row in answer.active_tasks)
        elif answer is not None and answer.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            epoch, tasks, joined_s = 0, 0, time.monotonic()
        else:
            assert answer is None or answer.error_code in LOADING, answer
        run.counts["streams heartbeats"] += 1
        assert tasks or time.monotonic() - joined_s < TASKS_LIMIT_S, f"no tasks after {TASKS_LIMIT_S:.0f} s: {answer}"
        await run.pause(HEARTBEAT_EACH_S)
    run.counts["streams members that had all tasks"] += bool(tasks)
    await run.ask_coordinator(GROUP, heartbeat(GROUP, -1), VERSION)
