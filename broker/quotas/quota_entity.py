"""Describes what a quota is set on: a user, a client id, a pair of both, or an address.

The name None is the type's default.

Pure. Source: KIP-546; Kafka's `ClientQuotaControlManager`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias
from urllib.parse import quote, unquote

from lowtide.protocol.errors import ErrorCode
from lowtide.replication.refusal import Refusal
from lowtide.runtime.addresses import in_normal_form, normal_address

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)
"""The quotas of users and client ids: bytes per second (twice), percent of a processor, changed partitions per
second."""

_WHOLE: Final = frozenset({PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE})
"""The quotas whose values are whole numbers."""

NAME_LENGTH_MAX: Final = 1024
"""The most characters of a user's or client's name with a quota."""

QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Pairs of type and name, ordered by type. None is the default."""


def entity_of(pairs: Iterable[tuple[str, str | None]]) -> QuotaEntity | Refusal:
    """Returns the entity of these pairs.

    Refusals: INVALID_REQUEST for types that can't be combined and for invalid names.
    """
    named: dict[str, str | None] = {}
    for kind, name in pairs:
        problem = (
            f"Invalid client quota entity, duplicate entity entry {kind}"
            if kind in named
            else _name_problem(kind, name)
        )
        if problem is not None:
            return _refused(problem)
        named[kind] = normal_name(kind, name)
    if not named:
        return _refused("Invalid empty client quota entity")
    if IP in named and len(named) > 1:
        return _refused("An ip cannot be combined with a user or a client-id")
    return tuple(sorted(named.items()))


def _name_problem(kind: str, name: str | None) -> str | None:
    if kind not in {USER, CLIENT_ID, IP}:
        return f"Unhandled client quota entity type: {kind}"
    if name is None:
        return None
    if not name:
        return f"Empty {kind} not supported"
    if len(name) > NAME_LENGTH_MAX:
        return f"The name of the {kind} has {len(name)} characters, {NAME_LENGTH_MAX} are allowed"
    return (
        f"{name} is not an IP address: Lowtide resolves no host names here"
        if kind == IP and normal_address(name) is None
        else None
    )


def check_quota(entity: QuotaEntity, key: str, value: float) -> Refusal | None:
    """Refuses a quota that can't be set on this entity, with INVALID_REQUEST."""
    allowed = (CONNECTION_CREATION_RATE,) if entity[0][0] == IP else CLIENT_KEYS
    if key not in allowed:
        return _refused(f"Invalid configuration key {key}")
    if not math.isfinite(value) or value <= 0:
        return _refused(f"Quota {key} must be greater than 0")
    if key in _WHOLE and value != int(value):
        return _refused(f"Configuration {key} must be a Long value")
    return None


def entity_text(entity: QuotaEntity) -> str:
    """Returns the entity's text in keys of the metadata store, as `client-id=app&user`.

    A lone `user` is the default user.
    """
    return "&".join(kind if name is None else f"{kind}={quote(name, safe='')}" for kind, name in entity)


def parse_entity(text: str) -> QuotaEntity:
    """Reads an entity's text. Normalizes addresses, which older versions didn't."""
    pairs = (part.partition("=") for part in text.split("&"))
    return tuple((kind, normal_name(kind, unquote(name)) if is_named else None) for kind, is_named, name in pairs)


def described(entity: QuotaEntity) -> str:
    """Describes an entity in messages, as `user=alice, client-id=<default>`."""
    return ", ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in reversed(entity))


def parse_values(configs: Mapping[str, str]) -> dict[str, float]:
    """Reads the quotas in the metadata store. Leaves out values that aren't numbers."""
    values: dict[str, float] = {}
    for key, text in configs.items():
        try:
            values[key] = float(text)
        except ValueError:
            continue
    return values


def normal_name(kind: str, name: str | None) -> str | None:
    """Returns the form of a name that is compared: an address is normalized."""
    return name if name is None or kind != IP else in_normal_form(name)


def _refused(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_REQUEST, message)
