"""What an image shows of access control: the rules by key, and an unfinished large change."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.records import AclChangeRecord, AclRecord, MetadataCorruptError, decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lowtide.metadata.store import KeyEvent, KeyValue, Revision


class AclImage(msgspec.Struct, frozen=True):
    """One rule. Its removal compares `revision`."""

    acl: AclRecord
    revision: Revision


class AclChangeImage(msgspec.Struct, frozen=True):
    """A large change in effect whose rules are still to be written singly. Each step compares `revision`."""

    change: AclChangeRecord
    revision: Revision

    def added(self) -> Iterator[tuple[bytes, bytes, AclRecord]]:
        """Yields key, value and rule of each addition."""
        for fields in self.change.added:
            acl = AclRecord(*fields)
            value = encode(acl)
            yield keys.acl(value), value, acl

    def removed(self) -> Iterator[bytes]:
        """Yields the keys of the removed rules."""
        for end in self.change.removed:
            yield keys.ACLS + end.encode()

    def apply_to(self, acls: dict[bytes, AclImage]) -> None:
        """Applies the change to the rules. Existing rules stay as they are."""
        for key, _, acl in self.added():
            acls.setdefault(key, AclImage(acl, self.revision))
        for key in self.removed():
            acls.pop(key, None)


def apply_acl(acls: dict[bytes, AclImage], key: bytes, change: KeyValue | KeyEvent) -> None:
    """Adds or removes the rule under a key, which is the hash of the value. Errors: MetadataCorruptError."""
    if change.value is None:
        acls.pop(key, None)
        return
    acl = decode(key, change.value, AclRecord)
    if keys.acl(change.value) != key:
        message = f"{key.decode(errors='replace')} in the metadata store is not the key of the rule that it has"
        raise MetadataCorruptError(message)
    acls[key] = AclImage(acl, change.modify_revision)


def read_acl_change(change: KeyValue | KeyEvent) -> AclChangeImage | None:
    """Returns the large change in the store. Errors: MetadataCorruptError."""
    if change.value is None:
        return None
    return AclChangeImage(decode(keys.ACL_CHANGE, change.value, AclChangeRecord), change.modify_revision)
