"""A closed cluster: TLS and SCRAM for clients and brokers, access rules, and an etcd that requires certificates."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path

import trustme

from lowtide.broker.config.keys_security import STANDARD_AUTHORIZER
from lowtide.protocol.client.sasl import ClientSaslExchange, ClientSaslSettings
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest
from lowtide.simulation.client import WireClient

HOST = "127.0.0.1"
MECHANISM = "SCRAM-SHA-512"
BROKER, ADMIN, CLIENT = "broker", "admin", "client"
PASSWORDS = {BROKER: "between them", ADMIN: "geheim", CLIENT: "pencil"}
LIMIT_S = 120.0
_LINE = "org.apache.kafka.common.security.scram.ScramLoginModule required"


class LoginRefusedError(Exception):
    """A broker does not take a password or a token. No OSError: under faults it is no loss of a connection."""


class Security:
    """Certificates in a folder, the settings of brokers and etcd, and clients that log in.

    A folder that has certificates already keeps them, and its users, for a cluster that continues.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if not self._path("ca").exists():
            authority = trustme.CA()
            for name in ("server", "store"):
                authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(self._path(name)))
            authority.cert_pem.write_to_path(str(self._path("ca")))
        self._context = ssl.create_default_context(cafile=str(self._path("ca")))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    @property
    def etcd_options(self) -> list[str]:
        """It shows a certificate, and asks for one."""
        store = str(self._path("store"))
        return [
            "--cert-file",
            store,
            "--key-file",
            store,
            "--trusted-ca-file",
            str(self._path("ca")),
            "--client-cert-auth",
        ]

    @property
    def metadata_options(self) -> list[str]:
        """The options of a command that uses this etcd."""
        store = str(self._path("store"))
        return ["--metadata-ca", str(self._path("ca")), "--metadata-cert", store, "--metadata-key", store]

    def settings(self, host: str, port: int) -> list[str]:
        """The settings of a broker with this listener."""
        values = {
            "listeners": f"SASL_SSL://{host}:{port}",
            "inter.broker.listener.name": "SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self._path("server")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._path("ca")),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
                f'{_LINE} username="{BROKER}" password="{PASSWORDS[BROKER]}";'
            ),
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{BROKER};User:{ADMIN}",
            "delegation.token.secret.key": "the secret of all brokers",
            "delegation.token.expiry.check.interval.ms": "1000",
        }
        return [f"{key}={value}" for key, value in values.items()]

    async def add_users(self, metadata: str) -> None:
        """Before the first start. Does nothing where they are."""
        added = self.folder / "users-added"
        if added.exists():
            return
        for user, password in PASSWORDS.items():
            words = ["users", "add", user, "--mechanism", MECHANISM, "--metadata", metadata, *self.metadata_options]
            await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "lowtide.cli.main", *words],
                input=password,
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=True,
            )
        added.touch()

    def client_properties(self, user: str) -> dict[str, str]:
        """The properties with which Kafka's clients, and `lowtide --command-config`, log in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{_LINE} username="{user}" password="{PASSWORDS[user]}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._path("ca")),
        }

    def librdkafka_properties(self, user: str) -> dict[str, str]:
        """The same for librdkafka."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
            "ssl.ca.location": str(self._path("ca")),
        }

    async def connect(
        self, host: str, port: int, user: str, password: str = "", *, by_token: bool = False
    ) -> WireClient:
        """Returns a client that has logged in. Errors: OSError; LoginRefusedError where the broker refuses it."""
        try:
            client = await WireClient.connect(host, port, self._context)
        except ssl.SSLCertVerificationError as error:
            raise AssertionError("the certificate of a broker is not trusted") from error
        given = ClientSaslSettings(
            mechanism=MECHANISM, username=user, password=password or PASSWORDS[user], by_token=by_token
        )
        exchange, received = ClientSaslExchange(given, os.urandom(16).hex()), None
        try:
            assert (await client.request(SaslHandshakeRequest(mechanism=MECHANISM), 1)).error_code == 0
            while (token := exchange.step(received)) is not None:
                answer = await client.request(SaslAuthenticateRequest(auth_bytes=token), 1)
                if answer.error_code:
                    raise LoginRefusedError(answer.error_message)  # noqa: TRY301
                received = answer.auth_bytes
        except BaseException:
            client.close()
            raise
        return client
