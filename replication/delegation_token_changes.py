"""Plans changes of delegation tokens: creation, renewal and expiry, removal, clean-up.

Each plan compares everything it relies on, so any broker may carry it out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata.changes import NO_CHANGE, ChangePlan, Step
from lowtide.metadata.records import encode
from lowtide.metadata.store import ABSENT, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal

if TYPE_CHECKING:
    from lowtide.metadata.image import MetadataImage
    from lowtide.metadata.records import TokenRecord
    from lowtide.metadata.token_image import TokenImage

TOKENS_MAX: Final = 10_000
"""The most tokens in a cluster: every broker keeps all of them in memory, about a kilobyte each. Kafka has no limit."""

REQUESTER_TOKENS_MAX: Final = 2_000
"""The most tokens that one principal may have created, for itself or for others."""

RESERVED_TOKENS: Final = 1_000
FEW_TOKENS: Final = 10
"""The last `RESERVED_TOKENS` are for principals that have created fewer than `FEW_TOKENS`, so that a few users can't
use up all tokens."""

RENEWERS_MAX: Final = 100
NAME_BYTES_MAX: Final = 1_024
"""Design limits of one token and of each principal in it."""

STEP_TOKENS: Final = 100
"""Tokens that one transaction removes: with their comparisons and the fences they stay below the store's limit."""


def check_names(token: TokenRecord) -> Refusal | None:
    """Returns what is wrong with the sizes of a token. Errors: INVALID_REQUEST."""
    if len(token.renewers) > RENEWERS_MAX:
        return Refusal(ErrorCode.INVALID_REQUEST, f"A token has at most {RENEWERS_MAX} renewers.")
    if any(len(name.encode()) > NAME_BYTES_MAX for name in (token.owner, token.requester, *token.renewers)):
        return Refusal(ErrorCode.INVALID_REQUEST, f"A principal has at most {NAME_BYTES_MAX} bytes.")
    return None


def plan_new_token(image: MetadataImage, key: bytes, token: TokenRecord) -> ChangePlan | Refusal:
    """Plans a new token. Errors: POLICY_VIOLATION if the requester or the cluster has too many."""
    own, count = sum(kept.token.requester == token.requester for kept in image.tokens.values()), len(image.tokens)
    if own >= REQUESTER_TOKENS_MAX:
        message = f"{token.requester} has created {own} delegation tokens; the limit is {REQUESTER_TOKENS_MAX}."
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    if count >= TOKENS_MAX or (own >= FEW_TOKENS and count >= TOKENS_MAX - RESERVED_TOKENS):
        message = (
            f"There are {count} delegation tokens; the limit is {TOKENS_MAX}, of which {RESERVED_TOKENS} are reserved "
            f"for principals that have created fewer than {FEW_TOKENS}."
        )
        return Refusal(ErrorCode.POLICY_VIOLATION, message)
    return _plan(Put(key, encode(token)), Compare(key, "modify", "==", ABSENT))


def plan_token_end(key: bytes, kept: TokenImage, expires_ms: int) -> ChangePlan:
    """Plans another expiry time of a token."""
    token = msgspec.structs.replace(kept.token, expires_ms=expires_ms)
    return _plan(Put(key, encode(token)), Compare(key, "modify", "==", kept.revision))


def plan_removed_token(key: bytes, kept: TokenImage) -> ChangePlan:
    """Plans the removal of a token."""
    return _plan(Delete(key), Compare(key, "modify", "==", kept.revision))


def plan_sweep_of_tokens(image: MetadataImage, now_ms: int) -> ChangePlan:
    """Plans the removal of at most STEP_TOKENS expired tokens by the controller. `now_ms` is a time since 1970."""
    ended = [(key, kept.revision) for key, kept in image.tokens.items() if kept.token.until_ms <= now_ms]
    if not ended:
        return NO_CHANGE
    some = ended[:STEP_TOKENS]
    step = Step(
        tuple(Delete(key) for key, _ in some), tuple(Compare(key, "modify", "==", revision) for key, revision in some)
    )
    return ChangePlan((step,))


def _plan(operation: Put | Delete, compare: Compare) -> ChangePlan:
    return ChangePlan((Step((operation,), (compare,)),), needs_controller=False)
