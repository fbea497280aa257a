"""What an image shows of access control: the rules, by their keys, and a change of many of them that is not through yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.records import AclChangeRecord, AclRecord, MetadataCorruptError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.metadata.store import Event, KeyValue, Revision


class AclImage(msgspec.Struct, frozen=True):
    """One rule. `revision` is what its removal must compare with."""

    acl: AclRecord
    revision: Revision


class AclChangeImage(msgspec.Struct, frozen=True):
    """A change that is in force, and whose rules are still to be written one by one.

    Each of these steps compares with `revision`.
    """

    change: AclChangeRecord
    revision: Revision

    def added(self) -> Iterator[tuple[bytes, bytes, AclRecord]]:
        """Key, value and rule of what it adds."""
        for fields in self.change.added:
            acl = AclRecord(*fields)
            value = encode(acl)
            yield keys.acl(value), value, acl

    def removed(self) -> Iterator[bytes]:
        """The keys of what it removes."""
        for end in self.change.removed:
            yield keys.ACLS + end.encode()

    def put_in_force(self, acls: dict[bytes, AclImage]) -> None:
        """Change the rules as the change says. A rule that is there stays as it is."""
        for key, _, acl in self.added():
            acls.setdefault(key, AclImage(acl, self.revision))
        for key in self.removed():
            acls.pop(key, None)


def take_over_acl(acls: dict[bytes, AclImage], key: bytes, change: KeyValue | Event) -> None:
    """Add or remove the rule under a key, which is the hash of the value. Errors: MetadataCorruptError."""
    if change.value is None:
        acls.pop(key, None)
        return
    acl = decode(key, change.value, AclRecord)
    if keys.acl(change.value) != key:
        message = f"{key.decode(errors='replace')} in the metadata store is not the key of the rule that it has"
        raise MetadataCorruptError(message)
    acls[key] = AclImage(acl, change.modify_revision)


def take_over_change(change: KeyValue | Event) -> AclChangeImage | None:
    """The change of many rules that a store has now. Errors: MetadataCorruptError."""
    if change.value is None:
        return None
    return AclChangeImage(decode(keys.ACL_CHANGE, change.value, AclChangeRecord), change.modify_revision)
