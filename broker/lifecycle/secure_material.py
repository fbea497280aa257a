"""What brokers need to encrypt, to log in to each other and to let an administrator log in: created once, kept, renewed near its end.

Files of a folder, each readable by its owner alone, but for `ca.pem`:

| file | content |
|---|---|
| `ca.pem`, `ca.key` | the authority that signs the certificates, and its key |
| `broker.pem` | key and certificate of the brokers |
| `etcd.pem`, `metadata.pem` | key and certificate of an etcd, and those that brokers show to it; where its hosts are given |
| `broker.properties` | settings of brokers: TLS, SCRAM-SHA-512, the authorizer |
| `admin.password`, `broker.password` | of the users, one line each |

`Maker.share` copies what each kind of machine needs into a folder: `brokers/` and `etcd/`. The authority's key and the passwords are in
neither.

The users `admin` and `broker` are superusers; their credentials are in the metadata (`first_users`). What is there stays: passwords and the
authority's key are never replaced. The authority's certificate is renewed with the same key, so certificates that it has signed stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from lowtide.broker.config.keys_security import STANDARD_AUTHORIZER
from lowtide.protocol.jaas import scram_login
from lowtide.runtime.clock import Clock, SystemClock
from lowtide.runtime.filesystem import FileSystem, OsFileSystem
from lowtide.runtime.filesystem.port import DEFAULT_FILE_MODE
from lowtide.runtime.random import Random, system_random
from lowtide.storage.errors import StorageError

if TYPE_CHECKING:
    from lowtide.runtime.authority import Certified

ADMIN: Final = "admin"
BROKER: Final = "broker"
MECHANISM: Final = "SCRAM-SHA-512"
LISTENER: Final = "SASL_SSL"
"""The name of the listener where there is one for clients and brokers, which is also its protocol."""

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
PUBLIC_MODE: Final = 0o644
PASSWORD_BITS: Final = 192
AUTHORITY_NAME: Final = "Lowtide authority"
BROKER_PROPERTIES: Final = "broker.properties"
CA_FILE: Final = "ca.pem"
ETCD_PEM: Final = "etcd.pem"
METADATA_PEM: Final = "metadata.pem"

SHARED: Final = {
    "brokers": (CA_FILE, "broker.pem", BROKER_PROPERTIES, METADATA_PEM),
    "etcd": (CA_FILE, ETCD_PEM, METADATA_PEM),
}
"""The files that a broker and an etcd need, by the name of the folder. The health check of an etcd logs in with `metadata.pem`."""


class Material(msgspec.Struct, frozen=True):
    """What is in a folder. `repr` shows no password."""

    directory: str
    """The absolute path of the folder."""
    passwords: Mapping[str, str]
    """Of the users `admin` and `broker`."""

    @property
    def ca(self) -> str:
        """The path of the authority's certificate."""
        return f"{self.directory}/{CA_FILE}"

    def __repr__(self) -> str:
        return f"Material({self.directory!r})"


class Maker(msgspec.Struct, frozen=True):
    """Where the files are, what time it is, and what makes passwords."""

    files: FileSystem
    clock: Clock
    random: Random

    def make(self, directory: str, hosts: Sequence[str] = LOOPBACK_HOSTS, etcd_hosts: Sequence[str] = ()) -> Material:
        """The material of a folder; what is missing or near its end is created.

        `hosts` are names and addresses of the brokers.
        Errors: StorageError, a sentence, for a file that can't be read or written.
        """
        directory = self.files.absolute_path(directory)
        try:
            self.files.make_directories(directory)
            self._certificates(directory, hosts, etcd_hosts)
            return Material(
                directory, {user: self._password(f"{directory}/{user}.password") for user in (ADMIN, BROKER)}
            )
        except OSError as error:
            raise StorageError(
                error.filename or directory, f"the file can't be used: {error.strerror or error}"
            ) from error

    def share(self, material: Material) -> None:
        """Copies the files of `SHARED` that exist into a folder for each kind of machine. Errors: StorageError."""
        try:
            for folder, names in SHARED.items():
                present = [name for name in names if self.files.exists(f"{material.directory}/{name}")]
                if folder == "etcd" and ETCD_PEM not in present:
                    continue
                self.files.make_directories(f"{material.directory}/{folder}")
                for name in present:
                    mode = PUBLIC_MODE if name == CA_FILE else DEFAULT_FILE_MODE
                    content = self.files.read_bytes(f"{material.directory}/{name}")
                    self.files.replace_file(f"{material.directory}/{folder}/{name}", content, mode=mode)
        except OSError as error:
            raise StorageError(
                error.filename or material.directory, f"the file can't be copied: {error.strerror or error}"
            ) from error

    def write(self, path: str, text: str) -> None:
        """Replace a file that only its owner may read. Errors: OSError."""
        self.files.replace_file(path, text.encode())

    def _certificates(self, directory: str, hosts: Sequence[str], etcd_hosts: Sequence[str]) -> None:
        """Errors: OSError, StorageError."""
        authority = self._authority(directory)
        self._certificate(f"{directory}/broker.pem", authority, BROKER, hosts)
        if etcd_hosts:
            self._certificate(f"{directory}/{ETCD_PEM}", authority, "etcd", etcd_hosts)
            self._certificate(f"{directory}/{METADATA_PEM}", authority, BROKER, ())

    def _authority(self, directory: str) -> Certified:
        """Errors: OSError, StorageError."""
        from lowtide.runtime.authority import Certified, new_authority, renewed_authority  # noqa: PLC0415  takes long

        certificate, key = f"{directory}/{CA_FILE}", f"{directory}/ca.key"
        now_ms = self.clock.wall_ms()
        if not self.files.exists(key):
            made = new_authority(AUTHORITY_NAME, now_ms)
            found = None
        else:
            found = Certified(self.files.read_bytes(certificate), self.files.read_bytes(key))
            try:
                made = renewed_authority(found, now_ms)
            except ValueError as error:
                raise StorageError(
                    certificate, "it and ca.key are no certificate with its key: remove both to create others"
                ) from error
        if made is not found:
            # The key last: an authority is there when its key is.
            self.files.replace_file(certificate, made.certificate, mode=PUBLIC_MODE)
            self.files.replace_file(key, made.key)
        return made

    def _certificate(self, path: str, authority: Certified, name: str, hosts: Sequence[str]) -> None:
        """Hosts that it had stay: brokers that run refuse a certificate with fewer. Errors: OSError, StorageError."""
        from lowtide.runtime.authority import hosts_of, issue, needs_renewal  # noqa: PLC0415  takes long

        now_ms = self.clock.wall_ms()
        try:
            old = self.files.read_bytes(path) if self.files.exists(path) else b""
            if not old or needs_renewal(old, authority, hosts, now_ms):
                names = list(dict.fromkeys([*(hosts_of(old) if old else ()), *hosts]))
                self.files.replace_file(path, issue(authority, name, names, now_ms).both)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise StorageError(
                path, f"no certificate for {name} at {', '.join(hosts) or 'no host'}: {reason}"
            ) from error

    def _password(self, path: str) -> str:
        """The first line of a file, which is created. Errors: OSError, StorageError."""
        if not self.files.exists(path):
            self.write(path, f"{self.random.getrandbits(PASSWORD_BITS):048x}\n")
        password = self.files.read_bytes(path).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
        if not password:
            raise StorageError(path, "it has no password in its first line: write one, or remove it to create another")
        return password


def system_maker() -> Maker:
    """The machine's own files, clock and randomness."""
    return Maker(OsFileSystem(), SystemClock(), system_random())


def broker_settings(material: Material, listener: str = LISTENER) -> dict[str, str]:
    """Keys of a broker. `listener` is the name of the one where brokers log in to each other.

    Every listener whose protocol is SASL_SSL takes clients by SCRAM-SHA-512. `listeners` itself, and the map of names
    to protocols where a listener has another name, are not among them.
    """
    return {
        "inter.broker.listener.name": listener,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": f"{material.directory}/broker.pem",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": material.ca,
        "sasl.enabled.mechanisms": MECHANISM,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{listener.lower()}.{MECHANISM.lower()}.sasl.jaas.config": scram_login(
            BROKER, material.passwords[BROKER]
        ),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN};User:{BROKER}",
    }


def properties(settings: Mapping[str, str]) -> str:
    """A file of properties. Backslashes are doubled; no value has a line end."""
    return "".join(f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items())
