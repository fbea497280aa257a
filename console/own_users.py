"""The console's own users, in a file: a name, a role, and what verifies the password, as SCRAM has it.

One user a line, `#` begins a comment:

    name:role:SCRAM-SHA-512:iterations:salt:stored key

Salt and key are in Base64. The file is read again when it has changed. A session ends when the line of its user changes
or goes.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.protocol.scram import ScramMechanism, credential_of, salted_password

if TYPE_CHECKING:
    from lowtide.runtime.filesystem import FileSystem
    from lowtide.runtime.random import Random

ITERATIONS: Final = 210_000
"""Iterations of new passwords. Source: OWASP's advice for PBKDF2 with SHA-512."""

ITERATIONS_MAX: Final = 2_000_000
SALT_BYTES: Final = 16
BYTES_MAX: Final = 1024 * 1024
"""The largest file."""

NAME_CHARACTERS_MAX: Final = 256
CHECKS_MAX: Final = 8
"""Passwords that wait for their check."""

_MECHANISM: Final = ScramMechanism.SHA_512
_FIELDS: Final = 6
_COMMENT: Final = "#"


class OwnUsersError(Exception):
    """The file is missing or invalid. A sentence."""


class TooManyChecksError(Exception):
    """Too many passwords wait for their check."""


class Role(Enum):
    """What a user may do with the console's own login to the cluster."""

    READ = "read"
    WRITE = "write"
    """Also changes, if the console allows them."""


class OwnUser(msgspec.Struct, frozen=True):
    """A user's role, and what verifies the password without containing it."""

    role: Role
    iterations: int
    salt: bytes
    stored_key: bytes

    def __repr__(self) -> str:
        return f"OwnUser({self.role.value})"

    def proves(self, password: str) -> bool:
        """Returns whether this is the password; takes a tenth of a second by design."""
        return hmac.compare_digest(_stored_key(password, self.salt, self.iterations), self.stored_key)


def new_user(role: Role, password: str, random: Random, iterations: int = ITERATIONS) -> OwnUser:
    """Returns a user with this password; takes a tenth of a second by design."""
    salt = random.getrandbits(8 * SALT_BYTES).to_bytes(SALT_BYTES, "big")
    return OwnUser(role, iterations, salt, _stored_key(password, salt, iterations))


def _stored_key(password: str, salt: bytes, iterations: int) -> bytes:
    return credential_of(
        _MECHANISM, salted_password(_MECHANISM, password, salt, iterations), salt, iterations
    ).stored_key


_NOBODY: Final = OwnUser(Role.READ, ITERATIONS, bytes(SALT_BYTES), bytes(64))
"""Checked for unknown names, so that the time of an answer doesn't tell whether a name exists."""


# ------------------------------------------------------------------ the text of the file
def parse_users(text: str, path: str) -> dict[str, OwnUser]:
    """Parses the users of a file. Errors: OwnUsersError, without the line's content."""
    found: dict[str, OwnUser] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith(_COMMENT):
            continue
        name, _, rest = line.partition(":")
        user = _parsed(rest.split(":"))
        if user is None or not is_name(name):
            raise OwnUsersError(
                f"{path}, line {number} is invalid: a line is name:role:{_MECHANISM.text}:iterations:salt:key, as "
                "`lowtide console-users add` writes it."
            )
        if name in found:
            raise OwnUsersError(f"{path}, line {number} is invalid: the user has an earlier line.")
        found[name] = user
    return found


def _parsed(fields: list[str]) -> OwnUser | None:
    """Returns the user of the fields after the name; None if they are invalid."""
    try:
        role, mechanism, iterations, salt, key = fields
        user = OwnUser(
            Role(role), int(iterations), base64.b64decode(salt, validate=True), base64.b64decode(key, validate=True)
        )
    except (ValueError, binascii.Error):
        return None
    fits = len(user.stored_key) == len(_NOBODY.stored_key) and len(user.salt) >= SALT_BYTES
    return user if mechanism == _MECHANISM.text and 1 <= user.iterations <= ITERATIONS_MAX and fits else None


def is_name(name: str) -> bool:
    """Returns whether a line can have this name."""
    return 0 < len(name) <= NAME_CHARACTERS_MAX and name.isprintable() and ":" not in name and name.strip("# ") == name


def line_of(name: str, user: OwnUser) -> str:
    """Returns the line of a user."""
    encoded = [base64.b64encode(each).decode() for each in (user.salt, user.stored_key)]
    return ":".join((name, user.role.value, _MECHANISM.text, str(user.iterations), *encoded))


def text_with(text: str, name: str, user: OwnUser | None) -> str:
    """Returns the text of a file with another line for a user, or without it; all other lines stay."""
    lines = [line for line in text.splitlines() if line.partition(":")[0] != name]
    return "".join(f"{line}\n" for line in [*lines, *([line_of(name, user)] if user is not None else [])])


# ------------------------------------------------------------------ the file
def read_text(files: FileSystem, path: str) -> str:
    """Reads the file. Errors: OwnUsersError."""
    try:
        if files.file_size(path) > BYTES_MAX:
            raise OwnUsersError(f"{path} is too large: a file of users has {BYTES_MAX} bytes at most.")
        return files.read_bytes(path).decode()
    except OSError as error:
        raise OwnUsersError(f"{path} can't be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise OwnUsersError(f"{path} is not UTF-8 text.") from None


class OwnUsers:
    """The users of a file, as it is now."""

    def __init__(self, files: FileSystem, path: str, on_trouble: Callable[[str], None]) -> None:
        """Reads the file. Errors: OwnUsersError.

        While the file can't be read later, nobody is a user; `on_trouble` is called once with the reason.
        """
        self._files = files
        self._on_trouble = on_trouble
        self._path = path
        self._seen = self._stamp()
        self._users: Mapping[str, OwnUser] = MappingProxyType(parse_users(read_text(files, path), path))
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._users)

    def of(self, name: str) -> OwnUser | None:
        """Returns a user as the file has it now. The file is read again if it has changed."""
        stamp = self._stamp()
        if stamp != self._seen:
            self._seen = stamp
            self._read()
        return self._users.get(name)

    async def checked(self, name: str, password: str) -> OwnUser | None:
        """Returns the user with this name and password, or None. Errors: TooManyChecksError."""
        if self._waiting >= CHECKS_MAX:
            raise TooManyChecksError
        user = self.of(name)
        self._waiting += 1
        try:
            async with self._turn:
                is_right = await asyncio.to_thread((user or _NOBODY).proves, password)
        finally:
            self._waiting -= 1
        return user if is_right and self.of(name) == user else None

    def _read(self) -> None:
        try:
            users = parse_users(read_text(self._files, self._path), self._path)
        except OwnUsersError as error:
            users = {}
            self._on_trouble(str(error))
        self._users = MappingProxyType(users)

    def _stamp(self) -> tuple[int, int]:
        """Returns what changes with the file."""
        try:
            return self._files.modified_ms(self._path), self._files.file_size(self._path)
        except OSError:
            return -1, -1
