"""Credentials in an image, and how many challenges have which form."""

from __future__ import annotations

from lowtide.metadata import keys
from lowtide.metadata.records import ScramRecord, encode
from lowtide.metadata.scram_image import NO_SCRAM, ScramImage, ScramImageChange
from lowtide.metadata.store import KeyEvent
from lowtide.protocol.scram import ChallengeForm, ScramMechanism

LONG, SHORT = ScramRecord(b"s" * 24, b"k", b"l", 4096), ScramRecord(b"\x00" * 16, b"k", b"l", 8192)
OF_LONG, OF_SHORT = ChallengeForm(24, True, 4096), ChallengeForm(16, False, 8192)


def after(image: ScramImage, revision: int, **users: ScramRecord | None) -> ScramImage:
    change = ScramImageChange(image)
    for name, record in users.items():
        key = keys.scram(ScramMechanism.SHA_256, name)
        change.apply(key, KeyEvent(key, None if record is None else encode(record), revision, revision))
    return change.finish()


def test_forms_are_counted_as_users_come_change_and_go():
    one = after(NO_SCRAM, 1, ann=LONG, bob=LONG)
    assert one.forms == {ScramMechanism.SHA_256: {OF_LONG: 2}}
    two = after(one, 2, bob=SHORT, eve=SHORT, unknown=None)
    assert two.forms == {ScramMechanism.SHA_256: {OF_LONG: 1, OF_SHORT: 2}}
    three = after(two, 3, ann=None)
    assert three.forms == {ScramMechanism.SHA_256: {OF_SHORT: 2}}
    assert (one.forms, two.forms) == (
        {ScramMechanism.SHA_256: {OF_LONG: 2}},
        {ScramMechanism.SHA_256: {OF_LONG: 1, OF_SHORT: 2}},
    )
