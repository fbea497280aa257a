"""Plans changes of users' SCRAM credentials.

Each user of a request is changed or refused separately; all changes are written together or not at all. The first
credential of a cluster also creates the secret from which salts of unknown users are derived.

Sources: KIP-554; Kafka's `ScramControlManager`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.changes import FENCES, ChangePlan, Step
from lowtide.metadata.records import ScramRecord, ScramSecretRecord, encode
from lowtide.metadata.scram_image import ScramImage
from lowtide.metadata.store import ABSENT, MAX_TRANSACTION_OPERATIONS, Compare, Delete, Put
from lowtide.protocol.errors import ErrorCode
from lowtide.protocol.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, credential_of
from lowtide.replication.refusal import Refusal

CHANGES_MAX: Final = MAX_TRANSACTION_OPERATIONS - FENCES - 2
"""The most changes in one request: they fit into one transaction of the store, with the secret."""

NAME_BYTES_MAX: Final = 1_024
SALT_BYTES_MAX: Final = 1_024
"""Design limits. Kafka's tools create salts of 26 bytes."""

_NO_MECHANISM: Final = Refusal(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")


class ScramChange(msgspec.Struct, frozen=True):
    """A credential to set, or to delete if it has neither salt nor salted password.

    `mechanism` is the protocol's number.
    """

    user: str
    mechanism: int
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""

    @property
    def deletes(self) -> bool:
        return not self.salted_password and not self.salt

    def __repr__(self) -> str:
        return f"ScramChange({self.user!r}, {self.mechanism})"


class PlannedScram(msgspec.Struct, frozen=True):
    """The outcome of each user, None for success, and the plan."""

    outcomes: Mapping[str, Refusal | None]
    plan: ChangePlan


def plan_scram(
    image: ScramImage, deletions: Sequence[ScramChange], upsertions: Sequence[ScramChange], secret: bytes
) -> PlannedScram:
    """Plans a request. `secret` is fresh, and is used if the cluster has none yet."""
    changes = [*deletions, *upsertions]
    counts = Counter(change.user for change in changes)
    outcomes: dict[str, Refusal | None] = {}
    operations: list[Put | Delete] = []
    compares: list[Compare] = []
    for index, change in enumerate(changes):
        if counts[change.user] > 1:
            text = "A user credential cannot be altered twice in the same request"
            outcomes[change.user] = Refusal(ErrorCode.DUPLICATE_RESOURCE, text)
            continue
        refusal = _check(image, change, deletes=index < len(deletions))
        if refusal is None and len(operations) >= CHANGES_MAX:
            refusal = Refusal(ErrorCode.INVALID_REQUEST, f"One request changes at most {CHANGES_MAX} users")
        outcomes[change.user] = refusal
        if refusal is None:
            mechanism = ScramMechanism(change.mechanism)
            key = keys.scram(mechanism, change.user)
            known = image.users.get(mechanism, {}).get(change.user)
            compares.append(Compare(key, "modify", "==", ABSENT if known is None else known.modify_revision))
            operations.append(Delete(key) if index < len(deletions) else Put(key, encode(_record(mechanism, change))))
    if operations and not image.secret:
        compares.append(Compare(keys.SCRAM_SECRET, "create", "==", ABSENT))
        operations.append(Put(keys.SCRAM_SECRET, encode(ScramSecretRecord(secret))))
    steps = (Step(tuple(operations), tuple(compares)),) if operations else ()
    return PlannedScram(outcomes, ChangePlan(steps, needs_controller=False))


def _check(image: ScramImage, change: ScramChange, *, deletes: bool) -> Refusal | None:
    if not change.user or len(change.user.encode()) > NAME_BYTES_MAX:
        text = f"Username must not be empty, nor longer than {NAME_BYTES_MAX} bytes"
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
    if change.mechanism not in ScramMechanism.__members__.values():
        return _NO_MECHANISM
    if deletes:
        is_there = image.of(ScramMechanism(change.mechanism), change.user) is not None
        return (
            None
            if is_there
            else Refusal(ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist")
        )
    return _check_credential(change)


def _check_credential(change: ScramChange) -> Refusal | None:
    if not ITERATIONS_MIN <= change.iterations <= ITERATIONS_MAX:
        amount = "few" if change.iterations < ITERATIONS_MIN else "many"
        return Refusal(
            ErrorCode.UNACCEPTABLE_CREDENTIAL,
            f"Too {amount} iterations: allowed are {ITERATIONS_MIN} to {ITERATIONS_MAX}",
        )
    if (
        not change.salt
        or not change.salted_password
        or max(len(change.salt), len(change.salted_password)) > SALT_BYTES_MAX
    ):
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty, nor very long")
    return None


def _record(mechanism: ScramMechanism, change: ScramChange) -> ScramRecord:
    made: ScramCredential = credential_of(mechanism, change.salted_password, change.salt, change.iterations)
    return ScramRecord(made.salt, made.stored_key, made.server_key, made.iterations)
