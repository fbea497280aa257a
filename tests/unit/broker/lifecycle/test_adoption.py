"""When topics that are found on disk are taken over, or refused as what is left of metadata that were lost."""

from __future__ import annotations

import pytest

from lowtide.broker.lifecycle.adoption import Adoption, adoption_due
from lowtide.metadata import keys
from lowtide.metadata.memory import MemoryDisk, MemoryStore
from lowtide.metadata.records import SuspensionRecord, encode
from lowtide.metadata.store import Put
from lowtide.runtime.filesystem.memory import MemoryFileSystem
from lowtide.runtime.random import Random
from lowtide.runtime.simulated_loop import SimulatedLoop, run_simulation
from lowtide.runtime.simulated_ports import SimulatedClock
from lowtide.storage.errors import StorageError
from lowtide.storage.log_directory import REGISTRATION_COUNTER

PREFIX = b"/lowtide/"


@pytest.mark.parametrize("was_ours", [False, True])
def test_a_store_that_is_suspended_is_not_new(was_ours: bool) -> None:
    """A recovery or a restore that was cut off early left it without a cluster id.

    Topics were to be adopted then, or that was advised.
    """

    async def scenario(loop: SimulatedLoop) -> None:
        store = MemoryStore(MemoryDisk(), clock=SimulatedClock(loop), random=Random(1), loop=loop)
        filesystem = MemoryFileSystem()
        filesystem.make_directories("/d/t-0")
        if was_ours:
            filesystem.write_bytes(f"/d/{REGISTRATION_COUNTER}", b"1")
            with pytest.raises(StorageError, match="the metadata are missing"):
                await adoption_due(store, filesystem, ["/d"], "store", PREFIX)
        await store.transact([], [Put(PREFIX + keys.SUSPENSION, encode(SuspensionRecord("cut off", -1)))])
        assert await adoption_due(store, filesystem, ["/d"], "store", PREFIX) is Adoption.NONE
        assert await store.get(PREFIX + keys.ADOPTION) is None
        await store.close()

    run_simulation(scenario, 1)
