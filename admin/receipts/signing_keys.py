"""The files of a key that signs receipts, on its owner's machine.

    KEY         the private key, PEM (PKCS 8), readable by its owner only
    KEY.pub     the public key, PEM: give it to those who verify
    KEY.chain   the last statement that was signed, replaced atomically before the statement is printed

A crash between signing and printing loses no number: the statement is in the chain, and `--last` prints it again. No
two statements get the same number, because they are signed under a lock. A key without its chain signs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from lowtide.admin.receipts.envelope import (
    ReceiptError,
    canonical_json,
    key_id_of,
    open_envelope,
    public_bytes,
    seal,
)
from lowtide.admin.receipts.statement import (
    NO_DIGEST,
    ChainLink,
    KeyRotation,
    Statement,
    payload_type_of,
    read_statement,
    rfc3339,
)
from lowtide.runtime.filesystem import AlreadyLockedError, FileSystem

PUBLIC_SUFFIX: Final = ".pub"
CHAIN_SUFFIX: Final = ".chain"
LOCK_SUFFIX: Final = ".lock"

KEY_BYTES_MAX: Final = 1 << 16
_OTHERS: Final = 0o077


class SigningKeyError(Exception):
    """Why a key can't be used or created, in one sentence."""


class SigningKey:
    """A private key, its chain, and the lock over both while it is open."""

    def __init__(self, files: FileSystem, path: str, key: Ed25519PrivateKey) -> None:
        self._files = files
        self.path = path
        self._key = key
        self.key_id = key_id_of(key.public_key())

    def last(self) -> bytes | None:
        """Returns the file of the last statement; None if nothing was signed. Errors: SigningKeyError, OSError."""
        path = self.path + CHAIN_SUFFIX
        if not self._files.exists(path):
            raise SigningKeyError(
                f"{path} is missing. Without it the next number is unknown: put it back, or create a new key."
            )
        return self._files.read_bytes(path) or None

    def _replacement(self, last: bytes) -> str | None:
        """Returns the id of the key that replaces this one, if that is its last statement. Errors: ReceiptError."""
        statement = read_statement(open_envelope(last))
        if isinstance(statement, KeyRotation) and statement.new_key_id != self.key_id:
            return statement.new_key_id
        return None

    def _replaced(self, replacement: str) -> SigningKeyError:
        return SigningKeyError(f"{self.path} was replaced by the key {replacement[:16]}….")

    def sign(self, make: Callable[[ChainLink], Statement], now_ms: int) -> bytes:
        """Signs the next statement of the chain; returns its file, which is in the chain already.

        Errors: SigningKeyError if the key was replaced; ReceiptError; OSError.
        """
        last = self.last()
        number, previous, issued_at = 1, NO_DIGEST, rfc3339(now_ms)
        if last is not None:
            if (replacement := self._replacement(last)) is not None:
                raise self._replaced(replacement)
            signed = open_envelope(last)
            before = read_statement(signed)
            number, previous = before.number + 1, signed.digest
            issued_at = max(issued_at, before.issued_at)
        link = ChainLink(number=number, previous=previous, issued_at=issued_at, key_id=self.key_id)
        statement = make(link)
        content = seal(payload_type_of(statement), canonical_json(statement), self._key)
        self._files.replace_file(self.path + CHAIN_SUFFIX, content)
        return content

    def rotate(self, new_path: str, now_ms: int) -> bytes:
        """Creates the key at `new_path`, which continues the chain; returns the statement that says so.

        A repetition after a crash ends what was begun. Errors: SigningKeyError, OSError.
        """
        last = self.last()
        begun = None if last is None else self._replacement(last)
        if not self._files.exists(new_path):
            if begun is not None:
                raise self._replaced(begun)
            _write_key(self._files, new_path)
        elif self._files.exists(new_path + CHAIN_SUFFIX):
            raise SigningKeyError(f"{new_path} exists already.")
        new = _read_key(self._files, new_path)
        raw, new_id = public_bytes(new.public_key()).hex(), key_id_of(new.public_key())
        if last is None or begun != new_id:
            last = self.sign(
                lambda link: KeyRotation(**msgspec.structs.asdict(link), new_key=raw, new_key_id=new_id), now_ms
            )
        self._files.replace_file(new_path + CHAIN_SUFFIX, last)
        return last


def create_key(files: FileSystem, path: str) -> str:
    """Creates a key with an empty chain; returns its id. Errors: SigningKeyError, OSError."""
    if files.exists(path + CHAIN_SUFFIX):
        raise SigningKeyError(f"{path + CHAIN_SUFFIX} exists already.")
    key = _write_key(files, path)
    files.replace_file(path + CHAIN_SUFFIX, b"")
    return key_id_of(key.public_key())


def _write_key(files: FileSystem, path: str) -> Ed25519PrivateKey:
    """Creates the files of a new key, durably; never replaces one. Errors: SigningKeyError, OSError."""
    key = Ed25519PrivateKey.generate()
    try:
        Path(path).touch(mode=0o600, exist_ok=False)  # Claims the name, as O_EXCL does.
    except FileExistsError:
        raise SigningKeyError(f"{path} exists already.") from None
    files.replace_file(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    files.replace_file(path + PUBLIC_SUFFIX, public, mode=0o644)
    return key


@contextmanager
def signing_key(files: FileSystem, path: str) -> Iterator[SigningKey]:
    """Opens a key under its lock. Errors: SigningKeyError, OSError."""
    key = _read_key(files, path)
    try:
        lock = files.lock(path + LOCK_SUFFIX)
    except AlreadyLockedError:
        raise SigningKeyError(f"another command is signing with {path}: try again when it has ended.") from None
    try:
        yield SigningKey(files, path, key)
    except ReceiptError as error:
        raise SigningKeyError(f"{error}.") from None
    finally:
        lock.release()


def _read_key(files: FileSystem, path: str) -> Ed25519PrivateKey:
    """Reads the key. Errors: SigningKeyError, also if others may read the key; OSError."""
    if Path(path).stat().st_mode & _OTHERS:
        raise SigningKeyError(f"other users may read {path}: remove their rights with `chmod 600`.")
    try:
        key = load_pem_private_key(_content(files, path), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise SigningKeyError(f"{path} is not a private key in PEM without a password.") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningKeyError(f"{path} is not an Ed25519 key.")
    return key


def read_public_key(files: FileSystem, path: str) -> Ed25519PublicKey:
    """Reads a public key. Errors: SigningKeyError, OSError."""
    try:
        key = load_pem_public_key(_content(files, path))
    except (ValueError, UnsupportedAlgorithm):
        raise SigningKeyError(f"{path} is not a public key in PEM.") from None
    if not isinstance(key, Ed25519PublicKey):
        raise SigningKeyError(f"{path} is not an Ed25519 key.")
    return key


def _content(files: FileSystem, path: str) -> bytes:
    if files.file_size(path) > KEY_BYTES_MAX:
        raise SigningKeyError(f"{path} is too large for a key.")
    return files.read_bytes(path)
