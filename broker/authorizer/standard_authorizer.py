"""Decides by super users, the rules of the metadata image, and a default for resources without rules.

Decisions are remembered until a rule changes. Denied requests go to the audit log. Sources: Kafka's
`StandardAuthorizer`, `StandardAuthorizerData`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lowtide.broker.audit.audit_log import AuditEvent, AuditLog, short
from lowtide.broker.authorizer.acl_index import EMPTY, AclDecision, AclIndex, decide, decide_by_type
from lowtide.broker.authorizer.authorizer import Audit, Requester, WriteGrants
from lowtide.broker.authorizer.resources import Operation, Resource, ResourceType
from lowtide.broker.security.principal import KafkaPrincipal, parse_principal
from lowtide.metadata.acl_image import AclImage
from lowtide.metadata.image import ImageDelta, MetadataImage
from lowtide.replication.topic_names import MAX_TOPIC_NAME_LENGTH

DECISIONS_MAX: Final = 20_000
"""The most remembered decisions, some megabytes. One more clears them all."""

REQUESTERS_MAX: Final = 1_000
"""The most pairs of principal and address with `WriteGrants`."""

HARDCODED: Final = "hardcode"
"""The name with which Kafka asks about any resource of a type before it examines the rules."""

_Asked = tuple[KafkaPrincipal, str, int, Resource]


def parse_super_users(text: str) -> frozenset[str]:
    """Reads `super.users`: principals as `Type:name`, separated by semicolons.

    Errors: ValueError for an invalid one.
    """
    names = [each.strip() for each in text.split(";")]
    return frozenset(str(parse_principal(name)) for name in names if name)


class StandardAuthorizer:
    """Decides by the rules of the image."""

    allows_all: bool = False

    def __init__(self, super_users: frozenset[str], *, allow_if_no_acl: bool, audit: AuditLog) -> None:
        """`allow_if_no_acl`: everyone may access a resource without rules."""
        self._super_users = super_users
        self._allow_if_no_acl = allow_if_no_acl
        self._audit = audit
        self.audits_allowed = AuditEvent.ALLOWED in audit.events
        self._acls: Mapping[bytes, AclImage] = {}
        self._hides_rules = False
        self._decisions: dict[_Asked, bool] = {}
        self._grants: dict[tuple[KafkaPrincipal, str], WriteGrants] = {}
        self.index: AclIndex = EMPTY

    def on_image(self, _old: MetadataImage, new: MetadataImage, _delta: ImageDelta) -> None:
        """Adopts the rules of a new image."""
        self.use(new.acls, hides_rules=new.hides_rules)

    def use(self, acls: Mapping[bytes, AclImage], *, hides_rules: bool = False) -> None:
        """Decides by these rules from now on. If they changed, remembered decisions are cleared.

        With `hides_rules` some rule can't be read and may be a denial, so only super users are allowed anything.
        """
        before = self._acls
        if acls is before and hides_rules is self._hides_rules:
            return
        self._hides_rules = hides_rules
        added = [acls[key].acl for key in acls.keys() - before.keys()]
        removed = [before[key].acl for key in before.keys() - acls.keys()]
        self.index = self.index.changed(added, removed)
        self._acls = acls
        self._decisions.clear()
        for grants in self._grants.values():
            grants.clear()

    def write_grants(self, requester: Requester) -> WriteGrants | None:
        """Returns the known topics that the requester may write to, shared by its connections from an address.

        None if each permission is audited.
        """
        if self.audits_allowed:
            return None
        key = requester.principal, requester.client_address
        grants = self._grants.get(key)
        if grants is None:
            if len(self._grants) >= REQUESTERS_MAX:
                for each in self._grants.values():
                    each.clear()
                self._grants.clear()
            grants = self._grants[key] = WriteGrants(requester.principal)
        return grants

    def authorize(
        self, requester: Requester, operation: Operation, resource: Resource, audit: Audit = Audit.BOTH
    ) -> bool:
        asked = (requester.principal, requester.client_address, operation, resource)
        allowed = self._decisions.get(asked)
        if allowed is None:
            allowed = self._decide(asked)
        if not allowed:
            if audit & Audit.DENIED:
                self._note(AuditEvent.DENIED, "operation denied", requester, operation, resource)
        elif self.audits_allowed and audit & Audit.ALLOWED:
            self._note(AuditEvent.ALLOWED, "operation allowed", requester, operation, resource)
        return allowed

    def authorize_by_resource_type(self, requester: Requester, operation: Operation, kind: ResourceType) -> bool:
        if self.authorize(requester, operation, Resource(kind, HARDCODED), Audit.ALLOWED):
            return True
        if self._hides_rules:
            return False
        return decide_by_type(self.index, str(requester.principal), requester.client_address, operation, kind)

    def explain(self, principal: str, host: str, operation: Operation, resource: Resource) -> AclDecision:
        """Returns the decision about a request and the rule behind it."""
        if principal in self._super_users:
            return AclDecision(allowed=True)
        if self._hides_rules:
            return AclDecision(allowed=False)
        decision = decide(self.index, principal, host, operation, resource)
        if decision.any_rule or not self._allow_if_no_acl:
            return decision
        return AclDecision(allowed=True)

    def _decide(self, asked: _Asked) -> bool:
        principal, host, operation, resource = asked
        allowed = self.explain(str(principal), host, Operation(operation), resource).allowed
        # Names too long for a topic are not remembered: a client without any right may ask about names of 32 KiB.
        if len(resource.name) <= MAX_TOPIC_NAME_LENGTH:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[asked] = allowed
        return allowed

    def _note(
        self, kind: AuditEvent, event: str, requester: Requester, operation: Operation, resource: Resource
    ) -> None:
        named = f"{resource.type.name}:{short(resource.name)}"
        self._audit.tried(kind, event, requester, operation=Operation(operation).name, resource=named)
