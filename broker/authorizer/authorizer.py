"""The question that guards and handlers ask before they act, and the answer if nothing is forbidden.

They ask at the same points as Kafka, so that a request with several faults is refused for the same one. Leaves out who
a client is (`security`) and the rules (`standard_authorizer`). Sources: Kafka's `Authorizer`, `Action`, `AuthHelper`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from typing import Final, Protocol

from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType, topic
from lowtide.broker.security.principal import KafkaPrincipal

GRANTS_MAX: Final = 10_000
"""The most topics in one `WriteGrants`."""


class Audit(IntFlag):
    """Which decisions are written to the audit log.

    A filter asks about resources that the client didn't name, so its denials aren't written.
    """

    NOTHING = 0
    ALLOWED = 1
    DENIED = 2
    BOTH = 3


class WriteGrants(set[str | bytes]):
    """The topics that a principal may write to from one address, by name or id.

    Cleared in place when a rule changes.
    """

    def __init__(self, principal: KafkaPrincipal) -> None:
        super().__init__()
        self.principal = principal

    def remember(self, topic_key: str | bytes) -> None:
        """Adds a topic. Above `GRANTS_MAX` the set starts anew."""
        if len(self) >= GRANTS_MAX:
            self.clear()
        self.add(topic_key)


class Requester(Protocol):
    """The principal and address that rules look at."""

    @property
    def principal(self) -> KafkaPrincipal: ...

    @property
    def client_address(self) -> str: ...


class Authorizer(Protocol):
    """Decides what principals may do.

    `allows_all` saves busy callers the question. `audits_allowed`: whether permissions are written to the audit log,
    too.
    """

    allows_all: bool
    audits_allowed: bool

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        """Returns whether the requester may perform the operation on the resource."""

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        """Returns whether the requester may perform the operation on any resource name of a type."""

    def write_grants(self, requester: Requester) -> WriteGrants | None:
        """Returns the set that remembers topics the requester may write to, or None if nothing may be remembered."""


class AllowAll:
    """Forbids nothing."""

    allows_all: bool = True
    audits_allowed: bool = False

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        """Always True."""
        return True

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        """Always True."""
        return True

    def write_grants(self, requester: Requester) -> WriteGrants | None:
        return None


ALLOW_ALL: Final = AllowAll()


def allowed_topics(
    authorizer: Authorizer, requester: Requester, operation: Operation, names: Iterable[str]
) -> frozenset[str]:
    """Returns the topics on which the requester may perform the operation."""
    wanted = frozenset(names)
    if authorizer.allows_all:
        return wanted
    return frozenset(name for name in wanted if authorizer.authorize(requester, operation, topic(name)))
