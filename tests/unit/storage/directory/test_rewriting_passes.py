"""When a log is rewritten for erasures."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from lowtide.storage.directory.log_erasure import REST_MAX_MS, RESTS_PER_PASS, RewritingPasses

if TYPE_CHECKING:
    from lowtide.storage.log.segments.segment import Segment


def at(base_offset: int) -> Segment:
    return cast("Segment", SimpleNamespace(base_offset=base_offset))


def rewritten(passes: RewritingPasses, base_offset: int, begun_ms: int, ended_ms: int) -> None:
    assert passes.may_rewrite(at(base_offset), begun_ms)
    passes.on_rewritten(at(base_offset), begun_ms, ended_ms)


def test_a_pass_goes_through_the_log_without_a_rest() -> None:
    passes = RewritingPasses()
    rewritten(passes, 0, 0, 1000)
    rewritten(passes, 100, 1000, 2000)
    rewritten(passes, 300, 2500, 3000)


@pytest.mark.parametrize("finds_nothing_between", [False, True])
def test_after_a_pass_the_log_rests_a_multiple_of_the_time_that_it_took(finds_nothing_between: bool) -> None:
    """Protects a broker whose users erase one person a minute: it would rewrite a large log all the time."""
    passes = RewritingPasses()
    rewritten(passes, 0, 0, 1000)
    rewritten(passes, 100, 1000, 2000)
    if finds_nothing_between:
        assert not passes.may_rewrite(None, 2100)
    following = at(200 if finds_nothing_between else 0)
    rested_ms = 2000 + RESTS_PER_PASS * 2000
    assert not passes.may_rewrite(following, 2200)
    assert not passes.may_rewrite(following, rested_ms - 1)
    assert passes.may_rewrite(following, rested_ms)


def test_a_rest_has_a_bound() -> None:
    """Otherwise requests with the default timeout would fail."""
    passes = RewritingPasses()
    rewritten(passes, 0, 0, 100_000)
    assert not passes.may_rewrite(at(0), 100_000 + REST_MAX_MS - 1)
    assert passes.may_rewrite(at(0), 100_000 + REST_MAX_MS)
