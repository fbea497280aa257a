"""Standing erasures while a broker's wall clock is wrong."""

from __future__ import annotations

from .standing_broker import ID, NOBODY, OTHER, OTHER_ID, PERSON, StandingBroker, standing, standing_broker


def test_a_clock_that_was_ahead_skips_no_record() -> None:
    """Only the controller ends an erasure. A leader whose clock says that it is over waits, and erases nothing."""

    async def test(broker: StandingBroker) -> None:
        log = broker.lead(0, NOBODY).log
        broker.see(e=standing(PERSON, ends_ms=2_000), o=standing(OTHER))
        log.keys += [PERSON, OTHER]
        broker.wall_ms = 2_000
        await broker.round()
        assert (broker.erased, broker.warnings) == ([(OTHER_ID, [2])], 1)
        broker.wall_ms = 1_000
        await broker.round()
        assert broker.erased == [(OTHER_ID, [2]), (ID, [1])]

    standing_broker(test)
