"""The SCRAM credentials of a cluster's users: an immutable part of the metadata image."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.metadata import keys
from lowtide.metadata.records import ScramRecord, ScramSecretRecord, decode
from lowtide.protocol.scram import ChallengeForm, ScramCredential, ScramMechanism

if TYPE_CHECKING:
    from collections.abc import Mapping

    from lowtide.metadata.store import KeyEvent, KeyValue, Revision


class KeptCredential(msgspec.Struct, frozen=True, gc=False):
    """A user's credential. A change compares `modify_revision`."""

    credential: ScramCredential
    modify_revision: Revision


def credential_of_record(record: ScramRecord) -> ScramCredential:
    """Returns the stored credential."""
    return ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)


class ScramImage(msgspec.Struct, frozen=True):
    """All credentials, by mechanism and user.

    `secret` makes the challenges of unknown users; it is empty before the first user is added. `forms` counts the
    users' challenges by form.
    """

    users: Mapping[ScramMechanism, Mapping[str, KeptCredential]] = {}
    secret: bytes = b""
    forms: Mapping[ScramMechanism, Mapping[ChallengeForm, int]] = {}

    def of(self, mechanism: ScramMechanism, user: str) -> ScramCredential | None:
        found = self.users.get(mechanism, {}).get(user)
        return None if found is None else found.credential


NO_SCRAM: Final = ScramImage()


class ScramImageChange:
    """Builds the credentials of the next image. Copies a mapping only when it changes."""

    def __init__(self, image: ScramImage) -> None:
        self._old = image
        self._users: dict[ScramMechanism, dict[str, KeptCredential]] = {}
        self._forms: dict[ScramMechanism, Counter[ChallengeForm]] = {}
        self._secret = image.secret

    def apply(self, key: bytes, change: KeyValue | KeyEvent) -> None:
        """Applies the change of a key that begins with `keys.SCRAM`. Errors: MetadataCorruptError."""
        if key == keys.SCRAM_SECRET:
            self._secret = b"" if change.value is None else decode(key, change.value, ScramSecretRecord).secret
            return
        named = keys.parse_scram(key)
        if named is None:
            return  # From a later version, with another mechanism.
        mechanism, user = named
        users = self._users.get(mechanism)
        if users is None:
            users = self._users[mechanism] = dict(self._old.users.get(mechanism, {}))
            self._forms[mechanism] = Counter(self._old.forms.get(mechanism, {}))
        forms = self._forms[mechanism]
        before = users.pop(user, None)
        if before is not None:
            forms[before.credential.form] -= 1
        if change.value is not None:
            record = decode(key, change.value, ScramRecord)
            kept = users[user] = KeptCredential(credential_of_record(record), change.modify_revision)
            forms[kept.credential.form] += 1

    def hold(self, key: bytes, secret: bytes) -> bool:
        """Handles an unreadable key: that user can't log in; the known `secret` stays.

        Returns whether the key is the secret's.
        """
        named = None if key == keys.SCRAM_SECRET else keys.parse_scram(key)
        if named is None:
            self._secret = secret if key == keys.SCRAM_SECRET else self._secret
            return key == keys.SCRAM_SECRET and bool(secret)
        mechanism, user = named
        if mechanism not in self._users:
            self._users[mechanism] = dict(self._old.users.get(mechanism, {}))
        self._users[mechanism].pop(user, None)
        return False

    def finish(self) -> ScramImage:
        """Returns the new image, or the old one if nothing changed."""
        if not self._users and self._secret == self._old.secret:
            return self._old
        forms = {
            mechanism: {form: count for form, count in found.items() if count}
            for mechanism, found in self._forms.items()
        }
        return ScramImage({**self._old.users, **self._users}, self._secret, {**self._old.forms, **forms})
