"""Plans of new, changed, removed and swept tokens."""

from __future__ import annotations

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import NO_CHANGE, ChangePlan
from lowtide.metadata.image import MetadataImage
from lowtide.metadata.records import TokenRecord, encode
from lowtide.metadata.store import ABSENT, Compare, Delete, Put
from lowtide.metadata.token_image import TokenImage
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.delegation_token_changes import (
    FEW_TOKENS,
    NAME_BYTES_MAX,
    RENEWERS_MAX,
    REQUESTER_TOKENS_MAX,
    RESERVED_TOKENS,
    STEP_TOKENS,
    TOKENS_MAX,
    check_names,
    plan_new_token,
    plan_removed_token,
    plan_sweep_of_tokens,
    plan_token_end,
)
from lowtide.replication.refusal import Refusal

TOKEN = TokenRecord("t", "User:alice", "User:alice", (), 0, 100, 500, {})
KEY = keys.token(b"hmac")
KEPT = TokenImage(TOKEN, 7)


def test_each_change_compares_what_it_saw() -> None:
    """So that one that arrives late does not bring a token back, or change another one's end."""
    new = plan_new_token(MetadataImage(), KEY, TOKEN)
    assert isinstance(new, ChangePlan)
    plans = [new, plan_token_end(KEY, KEPT, 300), plan_removed_token(KEY, KEPT)]
    assert [plan.needs_controller for plan in plans] == [False] * 3
    assert [plan.steps[0].operations for plan in plans] == [
        (Put(KEY, encode(TOKEN)),),
        (Put(KEY, encode(msgspec.structs.replace(TOKEN, expires_ms=300))),),
        (Delete(KEY),),
    ]
    assert [plan.steps[0].compares for plan in plans] == [
        (Compare(KEY, "modify", "==", ABSENT),),
        (Compare(KEY, "modify", "==", 7),),
        (Compare(KEY, "modify", "==", 7),),
    ]


def test_only_tokens_that_have_ended_are_swept_by_the_controller() -> None:
    ends = {b"past": (100, 500), b"life over": (500, 100), b"alive": (101, 101)}
    tokens = {
        key: TokenImage(msgspec.structs.replace(TOKEN, expires_ms=one, ends_ms=two), 7)
        for key, (one, two) in ends.items()
    }
    plan = plan_sweep_of_tokens(MetadataImage(tokens=tokens), 100)
    assert plan.needs_controller
    assert plan.steps[0].operations == (Delete(b"past"), Delete(b"life over"))
    assert len(plan.steps[0].compares) == 2
    assert plan_sweep_of_tokens(MetadataImage(tokens=tokens), 99) is NO_CHANGE
    many = {b"%d" % number: KEPT for number in range(STEP_TOKENS + 1)}
    assert len(plan_sweep_of_tokens(MetadataImage(tokens=many), 100).steps[0].operations) == STEP_TOKENS


def tokens_of(counts: dict[str, int]) -> MetadataImage:
    made = {name: TokenImage(msgspec.structs.replace(TOKEN, requester=name), 7) for name in counts}
    return MetadataImage(
        tokens={f"{name} {number}".encode(): made[name] for name, count in counts.items() for number in range(count)}
    )


def is_refused(image: MetadataImage, requester: str) -> bool:
    planned = plan_new_token(image, KEY, msgspec.structs.replace(TOKEN, owner="User:other", requester=requester))
    assert not isinstance(planned, Refusal) or planned.error_code == ErrorCode.POLICY_VIOLATION
    return isinstance(planned, Refusal)


def test_no_user_takes_the_tokens_of_others() -> None:
    """Neither one alone, which has a share, nor several together: the last ones are for those with few."""
    greedy = tokens_of({"User:mallory": REQUESTER_TOKENS_MAX})
    assert (is_refused(greedy, "User:mallory"), is_refused(greedy, "User:alice")) == (True, False)
    shares = {f"User:{number}": REQUESTER_TOKENS_MAX for number in range(4)}
    together = tokens_of({**shares, "User:4": TOKENS_MAX - RESERVED_TOKENS - 4 * REQUESTER_TOKENS_MAX})
    assert [is_refused(together, name) for name in ("User:0", "User:4", "User:alice")] == [True, True, False]
    few = tokens_of({**shares, "User:4": 1_000, "User:alice": FEW_TOKENS - 1, "User:bob": FEW_TOKENS})
    assert [is_refused(few, name) for name in ("User:alice", "User:bob")] == [False, True]


def test_there_are_not_any_number_of_tokens_nor_of_renewers() -> None:
    full = MetadataImage(tokens={b"%d" % number: KEPT for number in range(TOKENS_MAX)})
    refusal = plan_new_token(full, KEY, TOKEN)
    assert isinstance(refusal, Refusal)
    assert refusal.error_code == ErrorCode.POLICY_VIOLATION
    assert check_names(TOKEN) is None
    long = "User:" + "a" * NAME_BYTES_MAX
    for wrong in ({"renewers": ("User:a",) * (RENEWERS_MAX + 1)}, {"renewers": (long,)}, {"owner": long}):
        found = check_names(msgspec.structs.replace(TOKEN, **wrong))
        assert found is not None
        assert found.error_code == ErrorCode.INVALID_REQUEST
