"""Client settings for a cluster with `secure_material`, for each client library and as files.

The files are readable only by their owner: `admin.properties` for Kafka's Java clients and tools and for
`--command-config`, `admin.conf` for librdkafka (`kcat -F`), `admin.json` for Python, with settings of confluent-kafka
and of kafka-python; and `ca.pem`.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from lowtide.broker.lifecycle.secure_material import ADMIN, CA_FILE, MECHANISM, PUBLIC_MODE, Maker, Material, properties
from lowtide.protocol.jaas import scram_login
from lowtide.storage.errors import StorageError

PROPERTIES_FILE: Final = f"{ADMIN}.properties"
LIBRDKAFKA_FILE: Final = f"{ADMIN}.conf"
PYTHON_FILE: Final = f"{ADMIN}.json"
_PROTOCOL: Final = "SASL_SSL"


class ClusterLogin(msgspec.Struct, frozen=True):
    """A user's login at a cluster. `repr` hides the password."""

    bootstrap: str
    user: str
    password: str
    ca: str
    """The path of the CA certificate on the client."""

    def __repr__(self) -> str:
        return f"Login({self.bootstrap!r}, {self.user!r})"

    @property
    def java(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": _PROTOCOL,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": scram_login(self.user, self.password),
        }

    @property
    def librdkafka(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap,
            "security.protocol": _PROTOCOL,
            "ssl.ca.location": self.ca,
            "sasl.mechanism": MECHANISM,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    @property
    def kafka_python(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap.split(","),
            "security_protocol": _PROTOCOL,
            "ssl_cafile": self.ca,
            "sasl_mechanism": MECHANISM,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Settings of aiokafka. Reads the CA certificate. Errors: OSError."""
        import ssl  # noqa: PLC0415  slow import

        settings = self.kafka_python
        return settings | {"ssl_context": ssl.create_default_context(cafile=settings.pop("ssl_cafile"))}


def admin_login(material: Material, bootstrap: str, directory: str) -> ClusterLogin:
    """Returns the administrator's login, with `ca.pem` in `directory`."""
    return ClusterLogin(bootstrap, ADMIN, material.passwords[ADMIN], f"{directory}/{CA_FILE}")


def write_client_files(maker: Maker, material: Material, bootstrap: str, directory: str, seen_as: str = "") -> None:
    """Writes the settings files of the administrator.

    `seen_as` is the path of the folder on the client, if it differs. Errors: StorageError.
    """
    login = admin_login(material, bootstrap, seen_as or directory)
    python = {"confluent-kafka": login.librdkafka, "kafka-python": login.kafka_python}
    files = maker.files
    try:
        files.make_directories(directory)
        files.replace_file(f"{directory}/{CA_FILE}", files.read_bytes(material.ca), mode=PUBLIC_MODE)
        maker.write(f"{directory}/{PROPERTIES_FILE}", properties(login.java))
        maker.write(
            f"{directory}/{LIBRDKAFKA_FILE}", "".join(f"{key}={value}\n" for key, value in login.librdkafka.items())
        )
        maker.write(f"{directory}/{PYTHON_FILE}", json.dumps(python, indent=2) + "\n")
    except OSError as error:
        raise StorageError(
            error.filename or directory, f"the file cannot be written: {error.strerror or error}"
        ) from error
