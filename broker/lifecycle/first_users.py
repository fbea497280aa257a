"""Writes SCRAM credentials into a metadata store without a broker: the first users of a cluster.

Used while the brokers are stopped, or before their first start. Unchanged passwords keep their credentials.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from lowtide.broker.lifecycle.embedded_store import open_embedded
from lowtide.broker.lifecycle.secure_material import MECHANISM
from lowtide.metadata.etcd_address import DEFAULT_PREFIX
from lowtide.metadata.image_change import load_image
from lowtide.metadata.store import Delete, MetadataStore, Put
from lowtide.protocol.scram import (
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)
from lowtide.replication.scram_changes import ScramChange, plan_scram

if TYPE_CHECKING:
    from lowtide.broker.lifecycle.secure_material import Maker
    from lowtide.metadata.scram_image import ScramImage
    from lowtide.runtime.random import Random

SALT_BYTES: Final = 24
SECRET_BYTES: Final = 32


class UserRefusedError(Exception):
    """A change that was refused: the reason, without the user's name."""


def new_salt(random: Random) -> bytes:
    """Returns the salt of a new credential."""
    return random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")


def new_credential(
    user: str, mechanism: ScramMechanism, password: str, random: Random, iterations: int = ITERATIONS_MIN
) -> ScramChange:
    """Returns the change that sets a password with a new salt. Takes milliseconds of CPU."""
    salt = new_salt(random)
    return ScramChange(user, mechanism, iterations, salt, salted_password(mechanism, password, salt, iterations))


async def scram_users(store: MetadataStore, prefix: bytes) -> ScramImage:
    """Returns the credentials in a store. Errors: MetadataStoreError, MetadataCorruptError."""
    pairs, revision = await store.range(prefix)
    return load_image(pairs, revision, prefix=prefix).scram


async def change_user(store: MetadataStore, prefix: bytes, change: ScramChange, random: Random) -> None:
    """Sets or deletes one credential. Errors: UserRefusedError, MetadataStoreError, MetadataCorruptError."""
    secret = random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
    image = await scram_users(store, prefix)
    planned = plan_scram(image, [change] if change.deletes else [], [] if change.deletes else [change], secret)
    refusal = planned.outcomes[change.user]
    if refusal is not None:
        raise UserRefusedError(refusal.message)
    (step,) = planned.plan.steps
    compares = [type(each)(prefix + each.key, each.field, each.operator, each.argument) for each in step.compares]
    operations: list[Put | Delete] = [
        Put(prefix + each.key, each.value, each.lease) if isinstance(each, Put) else Delete(prefix + each.key)
        for each in step.operations
    ]
    if not (await store.transact(compares, operations)).succeeded:
        raise UserRefusedError("the metadata changed concurrently: try again")


async def set_passwords(directory: str, passwords: Mapping[str, str], maker: Maker) -> None:
    """Sets the passwords of these users in the metadata file of a folder, whose brokers are stopped.

    Errors: StorageError, MetadataStoreError, MetadataCorruptError, OSError.
    """
    mechanism = SCRAM_MECHANISMS[MECHANISM]
    maker.files.make_directories(directory)
    store = await open_embedded(directory, maker.files, maker.clock, "another process uses this folder")
    try:
        image = await scram_users(store, DEFAULT_PREFIX)
        for user, password in passwords.items():
            known = image.of(mechanism, user)
            if known is None or not _is_of(mechanism, known, password):
                await change_user(
                    store, DEFAULT_PREFIX, new_credential(user, mechanism, password, maker.random), maker.random
                )
    finally:
        await store.close()


def _is_of(mechanism: ScramMechanism, known: ScramCredential, password: str) -> bool:
    salted = salted_password(mechanism, password, known.salt, known.iterations)
    return hmac.compare_digest(
        credential_of(mechanism, salted, known.salt, known.iterations).stored_key, known.stored_key
    )
