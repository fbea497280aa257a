"""DSSE envelopes: a payload, its type, and one Ed25519 signature over both.

There is one valid form of an envelope and of a payload, so a change of any byte of a file is found, also one that a
JSON parser would forgive.

Sources: the DSSE protocol (github.com/secure-systems-lab/dsse), RFC 8032.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lowtide.runtime.json_text import decode_json

RECEIPT_TYPE: Final = "application/vnd.lowtide.erasure-receipt+json"
ROTATION_TYPE: Final = "application/vnd.lowtide.erasure-key-rotation+json"

ENVELOPE_BYTES_MAX: Final = 64 << 20
"""The largest file of a receipt: about three million records."""


class ReceiptError(ValueError):
    """What is wrong with a receipt, a ledger or a key, as a sentence without its end."""


class EnvelopeSignature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key's id, and the signature in base64."""

    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """The document of a file; the payload is in base64."""

    payload: str
    payload_type: str
    signatures: list[EnvelopeSignature]


class SignedPayload(msgspec.Struct, frozen=True):
    """The content of an envelope. Nothing is proven before `is_signed_by`."""

    payload_type: str
    payload: bytes
    key_id: str
    signature: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the payload: the next statement contains it."""
        return sha256(self.payload).hexdigest()

    def is_signed_by(self, key: Ed25519PublicKey) -> bool:
        """Returns whether the signature is that of `key`."""
        try:
            key.verify(self.signature, signed_bytes(self.payload_type, self.payload))
        except InvalidSignature:
            return False
        return True


def canonical_json(value: Any) -> bytes:
    """Returns the only valid JSON text of a value: sorted keys, no white space. Values have no floats."""
    return msgspec.json.encode(value, order="sorted")


def public_bytes(key: Ed25519PublicKey) -> bytes:
    """Returns the 32 bytes of a public key."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def key_id_of(key: Ed25519PublicKey) -> str:
    """Returns the id of a key: SHA-256 of the public key's 32 bytes, in hexadecimal."""
    return sha256(public_bytes(key)).hexdigest()


def signed_bytes(payload_type: str, payload: bytes) -> bytes:
    """Returns what is signed: DSSE's pre-authentication encoding.

    >>> signed_bytes("http://example.com/HelloWorld", b"hello world")
    b'DSSEv1 29 http://example.com/HelloWorld 11 hello world'
    """
    kind = payload_type.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def seal(payload_type: str, payload: bytes, key: Ed25519PrivateKey) -> bytes:
    """Signs a payload; returns the content of the file. Errors: ReceiptError if it is too large."""
    signature = EnvelopeSignature(key_id_of(key.public_key()), _text(key.sign(signed_bytes(payload_type, payload))))
    content = canonical_json(Envelope(_text(payload), payload_type, [signature])) + b"\n"
    if len(content) > ENVELOPE_BYTES_MAX:
        raise ReceiptError(f"the receipt would have {len(content)} bytes, and at most {ENVELOPE_BYTES_MAX} are allowed")
    return content


def open_envelope(content: bytes) -> SignedPayload:
    """Reads an envelope without checking its signature. Errors: ReceiptError."""
    if len(content) > ENVELOPE_BYTES_MAX:
        raise ReceiptError(f"it has {len(content)} bytes, and a receipt has at most {ENVELOPE_BYTES_MAX}")
    try:
        envelope = decode_json(content, Envelope)
        payload = base64.b64decode(envelope.payload, validate=True)
        signatures = [(each.keyid, base64.b64decode(each.sig, validate=True)) for each in envelope.signatures]
    except ValueError as error:
        raise ReceiptError(f"it is not an envelope of a receipt: {error}") from None
    if len(signatures) != 1:
        raise ReceiptError(f"it has {len(signatures)} signatures instead of one")
    again = Envelope(
        _text(payload), envelope.payload_type, [EnvelopeSignature(key_id, _text(sig)) for key_id, sig in signatures]
    )
    if canonical_json(again) + b"\n" != content:
        raise ReceiptError("its JSON is not in the form in which receipts are written, so bytes were changed")
    return SignedPayload(envelope.payload_type, payload, *signatures[0])


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
