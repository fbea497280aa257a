"""Apache Kafka with listeners that clients log in to: by PLAIN and SCRAM, with TLS and without."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.free_ports import free_ports

from .kafka import CLUSTER_ID, TOOL_TIMEOUT_S, Kafka, java

CERTIFICATES = Path(__file__).parents[1] / "clients" / "certificates"
SECURED = """
listeners=PLAINTEXT://127.0.0.1:{plain},CONTROLLER://127.0.0.1:{controller},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{tls}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL_PLAINTEXT://127.0.0.1:{sasl},SASL_SSL://127.0.0.1:{tls}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
connections.max.reauth.ms=600000
delegation.token.secret.key=the secret of all brokers
"""
LOGIN = (
    "listener.name.{listener}.{mechanism}.sasl.jaas.config=org.apache.kafka.common.security.{module} required{users};\n"
)


class SecuredKafka:
    """A Kafka node with a listener in plain text, one with SASL, and one with SASL over TLS."""

    def __init__(self, jars: Path, folder: Path) -> None:
        plain, controller, self.sasl, self.tls = free_ports(4)
        self.node = Kafka(jars, folder, (plain, controller))
        keystore = folder / "keystore.pem"
        keystore.write_text((CERTIFICATES / "key.pem").read_text() + (CERTIFICATES / "certificate.pem").read_text())
        lines = SECURED.format(plain=plain, controller=controller, sasl=self.sasl, tls=self.tls, keystore=keystore)
        for listener in ("sasl_plaintext", "sasl_ssl"):
            lines += LOGIN.format(
                listener=listener,
                mechanism="plain",
                module="plain.PlainLoginModule",
                users=' user_alice="alices" user_bob="bobs"',
            )
            for mechanism in ("scram-sha-256", "scram-sha-512"):
                lines += LOGIN.format(listener=listener, mechanism=mechanism, module="scram.ScramLoginModule", users="")
        properties = folder / "server.properties"
        with properties.open("a") as file:
            file.write(lines)
        shutil.rmtree(self.node.directory)
        users = [f"--add-scram=SCRAM-SHA-{bits}=[name=alice,password=alices]" for bits in (256, 512)]
        command = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties), *users)
        subprocess.run(command, check=True, capture_output=True, timeout=TOOL_TIMEOUT_S)

    def settings(self, protocol: str, mechanism: str = "", password: str = "alices") -> dict[str, Any]:
        """Returns what a client needs for one of the listeners."""
        if protocol == "PLAINTEXT":
            return {"bootstrap.servers": self.node.bootstrap}
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        return {
            "bootstrap.servers": f"127.0.0.1:{self.sasl if protocol == 'SASL_PLAINTEXT' else self.tls}",
            "security.protocol": protocol,
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f'org.apache.kafka.common.security.{module} required username="alice" password="{password}";'
            ),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(CERTIFICATES / "certificate.pem"),
        }
