"""The port: the question that guards and handlers ask before they act, and the answer while nothing is forbidden.

It is asked where Kafka asks, so that a request that is refused for several reasons is refused for the same one.

Does not do: who a client is (`security`), which rules there are (`standard_authorizer`).
Sources: Kafka's `Authorizer`, `Action`, `AuthHelper`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntFlag
from typing import Final, Protocol

from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType, topic
from lowtide.broker.security.principal import KafkaPrincipal

GRANTS_MAX: Final = 10_000
"""Topics in one `WriteGrants`."""


class Audit(IntFlag):
    """Which outcome of a question is worth a line of the audit log.

    A filter asks about what was not named, so its denials are not.
    """

    NOTHING = 0
    ALLOWED = 1
    DENIED = 2
    BOTH = 3


class WriteGrants(set[str | bytes]):
    """Topics that a principal may write to from one address, by name or id. Cleared, in place, when a rule changes."""

    def __init__(self, principal: KafkaPrincipal) -> None:
        """Nothing is known yet."""
        super().__init__()
        self.principal = principal

    def remember(self, topic_key: str | bytes) -> None:
        """Add a topic. Beyond `GRANTS_MAX` all are forgotten."""
        if len(self) >= GRANTS_MAX:
            self.clear()
        self.add(topic_key)


class Requester(Protocol):
    """Who asks, and from where: a request, as the rules see it."""

    @property
    def principal(self) -> KafkaPrincipal:
        """Who."""

    @property
    def client_address(self) -> str:
        """From which address, without a port."""


class Authorizer(Protocol):
    """The port.

    `allows_all` spares those who ask a thousand times a second; `audits_allowed`: what is allowed is written down, too.
    """

    allows_all: bool
    audits_allowed: bool

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        """Whether the requester may do that to the resource."""

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        """Whether the requester may do that to any resource of a type, whether or not there is one now."""

    def write_grants(self, requester: Requester) -> WriteGrants | None:
        """Where it may be remembered what the requester may write to; None where that can't be."""


class AllowAll:
    """Nothing is forbidden."""

    allows_all: bool = True
    audits_allowed: bool = False

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        """Yes."""
        return True

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        """Yes."""
        return True

    def write_grants(self, requester: Requester) -> WriteGrants | None:
        """None is needed."""
        return None


ALLOW_ALL: Final = AllowAll()


def allowed_topics(
    authorizer: Authorizer, requester: Requester, operation: Operation, names: Iterable[str]
) -> frozenset[str]:
    """Of these topics those that the requester may do that to."""
    wanted = frozenset(names)
    if authorizer.allows_all:
        return wanted
    return frozenset(name for name in wanted if authorizer.authorize(requester, operation, topic(name)))
