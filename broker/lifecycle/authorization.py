"""The authorizer of a broker: what its configuration asks for, kept at the rules of the metadata image."""

from __future__ import annotations

from lowtide.broker.audit.audit_log import AuditLog
from lowtide.broker.authorizer.authorizer import ALLOW_ALL, Authorizer
from lowtide.broker.authorizer.standard_authorizer import StandardAuthorizer, parse_super_users
from lowtide.broker.config.broker_config import BrokerConfig
from lowtide.metadata.session import MetadataSession


def make_authorizer(config: BrokerConfig, session: MetadataSession, audit: AuditLog) -> Authorizer:
    """Without `authorizer.class.name` nothing is forbidden. The rules are those of the image now, and follow it."""
    values = config.values
    if not values["authorizer.class.name"]:
        return ALLOW_ALL
    authorizer = StandardAuthorizer(
        parse_super_users(str(values["super.users"])),
        allow_if_no_acl=values["allow.everyone.if.no.acl.found"] is True,
        audit=audit,
    )
    authorizer.use(session.image.acls, hides_rules=session.image.hides_rules)
    session.on_image(authorizer.on_image)
    return authorizer
