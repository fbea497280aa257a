"""Keys, certificates and passwords for TLS, broker logins and an administrator: created once, renewed before expiry.

Files of a folder, readable only by their owner, except `ca.pem`:

| file | content |
|---|---|
| `ca.pem`, `ca.key` | the CA certificate and its key |
| `broker.pem` | key and certificate of the brokers |
| `etcd.pem`, `metadata.pem` | key and certificate of etcd, and those of brokers at etcd; only if its hosts are given |
| `console.pem` | key and certificate of the console; only if its hosts are given. It identifies no client at etcd |
| `broker.properties` | settings of brokers: TLS, SCRAM-SHA-512, the authorizer |
| `console.properties` | client settings of the console, without a login |
| `admin.password`, `broker.password` | the users' passwords, one line each |

`Maker.share` copies the files that each kind of machine needs into the folders `brokers/`, `etcd/` and `console/`,
without the CA key and the passwords.

The users `admin` and `broker` are superusers; their credentials are in the metadata (`first_users`). Existing passwords
and the CA key are never replaced. The CA certificate is renewed with the same key, so the certificates that it signed
stay valid.
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
    from lowtide.runtime.authority import CertificateWithKey

ADMIN: Final = "admin"
BROKER: Final = "broker"
MECHANISM: Final = "SCRAM-SHA-512"
LISTENER: Final = "SASL_SSL"
"""The listener for clients and brokers, named like its protocol."""

LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "::1")
PUBLIC_MODE: Final = 0o644
PASSWORD_BITS: Final = 192
AUTHORITY_NAME: Final = "Lowtide authority"
BROKER_PROPERTIES: Final = "broker.properties"
CA_FILE: Final = "ca.pem"
ETCD_PEM: Final = "etcd.pem"
METADATA_PEM: Final = "metadata.pem"
CONSOLE_PEM: Final = "console.pem"
CONSOLE_PROPERTIES: Final = "console.properties"

SHARED: Final = {
    "brokers": (CA_FILE, "broker.pem", BROKER_PROPERTIES, METADATA_PEM),
    "etcd": (CA_FILE, ETCD_PEM, METADATA_PEM),
    "console": (CA_FILE, CONSOLE_PEM, CONSOLE_PROPERTIES),
}
"""The files that each kind of machine needs, by folder. The health check of etcd logs in with `metadata.pem`."""

_SHARED_IF: Final = {"etcd": ETCD_PEM, "console": CONSOLE_PEM}
"""The file without which a folder isn't made."""


class Material(msgspec.Struct, frozen=True):
    """The material in a folder. `repr` hides passwords."""

    directory: str
    passwords: Mapping[str, str]
    """The passwords of the users `admin` and `broker`."""

    @property
    def ca(self) -> str:
        return f"{self.directory}/{CA_FILE}"

    def __repr__(self) -> str:
        return f"Material({self.directory!r})"


class Maker(msgspec.Struct, frozen=True):
    """Creates the material, with these files, this clock and this randomness."""

    files: FileSystem
    clock: Clock
    random: Random

    def make(
        self,
        directory: str,
        hosts: Sequence[str] = LOOPBACK_HOSTS,
        etcd_hosts: Sequence[str] = (),
        console_hosts: Sequence[str] = (),
    ) -> Material:
        """Returns the material of a folder; creates what is missing or near expiry.

        `hosts` are names and addresses of the brokers. Errors: StorageError, a sentence, for a file that cannot be read
        or written.
        """
        directory = self.files.absolute_path(directory)
        try:
            self.files.make_directories(directory)
            authority = self._authority(directory)
            self._certificates(authority, directory, hosts, etcd_hosts)
            if console_hosts:
                self._certificate(f"{directory}/{CONSOLE_PEM}", authority, "console", console_hosts, is_client=False)
            return Material(
                directory, {user: self._password(f"{directory}/{user}.password") for user in (ADMIN, BROKER)}
            )
        except OSError as error:
            raise StorageError(
                error.filename or directory, f"the file cannot be used: {error.strerror or error}"
            ) from error

    def share(self, material: Material) -> None:
        """Copies the files of `SHARED` that exist into a folder for each kind of machine. Errors: StorageError."""
        try:
            for folder, names in SHARED.items():
                present = [name for name in names if self.files.exists(f"{material.directory}/{name}")]
                if _SHARED_IF.get(folder, CA_FILE) not in present:
                    continue
                self.files.make_directories(f"{material.directory}/{folder}")
                for name in present:
                    mode = PUBLIC_MODE if name == CA_FILE else DEFAULT_FILE_MODE
                    content = self.files.read_bytes(f"{material.directory}/{name}")
                    self.files.replace_file(f"{material.directory}/{folder}/{name}", content, mode=mode)
        except OSError as error:
            raise StorageError(
                error.filename or material.directory, f"the file cannot be copied: {error.strerror or error}"
            ) from error

    def write(self, path: str, text: str) -> None:
        """Replaces a file that only its owner can read. Errors: OSError."""
        self.files.replace_file(path, text.encode())

    def _certificates(
        self, authority: CertificateWithKey, directory: str, hosts: Sequence[str], etcd_hosts: Sequence[str]
    ) -> None:
        """Creates or renews the certificates of brokers and etcd. Errors: OSError, StorageError."""
        self._certificate(f"{directory}/broker.pem", authority, BROKER, hosts)
        if etcd_hosts:
            self._certificate(f"{directory}/{ETCD_PEM}", authority, "etcd", etcd_hosts)
            self._certificate(f"{directory}/{METADATA_PEM}", authority, BROKER, ())

    def _authority(self, directory: str) -> CertificateWithKey:
        """Returns the authority. Errors: OSError, StorageError."""
        from lowtide.runtime.authority import CertificateWithKey, new_authority, renewed_authority  # noqa: PLC0415  slow import

        certificate, key = f"{directory}/{CA_FILE}", f"{directory}/ca.key"
        now_ms = self.clock.wall_ms()
        if not self.files.exists(key):
            made = new_authority(AUTHORITY_NAME, now_ms)
            found = None
        else:
            found = CertificateWithKey(self.files.read_bytes(certificate), self.files.read_bytes(key))
            try:
                made = renewed_authority(found, now_ms)
            except ValueError as error:
                raise StorageError(certificate, "it does not match ca.key: remove both to create new ones") from error
        if made is not found:
            # The key comes last: the authority exists if its key does.
            self.files.replace_file(certificate, made.certificate, mode=PUBLIC_MODE)
            self.files.replace_file(key, made.key)
        return made

    def _certificate(
        self, path: str, authority: CertificateWithKey, name: str, hosts: Sequence[str], *, is_client: bool = True
    ) -> None:
        """Renews a certificate. It keeps its previous hosts, because brokers refuse one with fewer.

        Errors: OSError, StorageError.
        """
        from lowtide.runtime.authority import hosts_of, issue, needs_renewal  # noqa: PLC0415  slow import

        now_ms = self.clock.wall_ms()
        try:
            old = self.files.read_bytes(path) if self.files.exists(path) else b""
            if not old or needs_renewal(old, authority, hosts, now_ms):
                names = list(dict.fromkeys([*(hosts_of(old) if old else ()), *hosts]))
                self.files.replace_file(path, issue(authority, name, names, now_ms, is_client=is_client).both)
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise StorageError(
                path, f"no certificate for {name} at {', '.join(hosts) or 'no host'}: {reason}"
            ) from error

    def _password(self, path: str) -> str:
        """Returns the first line of a file, which is created if missing. Errors: OSError, StorageError."""
        if not self.files.exists(path):
            self.write(path, f"{self.random.getrandbits(PASSWORD_BITS):048x}\n")
        password = self.files.read_bytes(path).decode("utf-8", "replace").partition("\n")[0].rstrip("\r")
        if not password:
            raise StorageError(
                path, "its first line is empty: write a password, or remove the file to create a new one"
            )
        return password


def system_maker() -> Maker:
    """Returns a maker with the machine's own files, clock and randomness."""
    return Maker(OsFileSystem(), SystemClock(), system_random())


def broker_settings(material: Material, listener: str = LISTENER) -> dict[str, str]:
    """Returns the security settings of brokers. `listener` is the one where brokers log in to each other.

    Every SASL_SSL listener accepts clients with SCRAM-SHA-512. `listeners` and `listener.security.protocol.map` are not
    included.
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


def console_settings(material: Material) -> dict[str, str]:
    """Returns the client settings of a console whose visitors log in with their own names and passwords."""
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": material.ca,
    }


def properties(settings: Mapping[str, str]) -> str:
    """Formats a properties file. Doubles backslashes; values have no line ends."""
    return "".join(f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in settings.items())
