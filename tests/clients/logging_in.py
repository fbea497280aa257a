"""Each client library connects with librdkafka's settings, and says why it could not.

A client returns the empty text when it was served, else what its user sees of the reason: errors, and lines of its log.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import ssl
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import aiokafka
import pytest
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lowtide.admin import BlockingAdminClient
from lowtide.admin.errors import AdminError

TIMEOUT_S = 20
"""The limit for an answer on a busy machine."""

REFUSAL_S = 3
"""How long librdkafka and kafka-python may repeat a login that must be refused."""

INVALID = "Authentication failed during authentication due to invalid credentials"
"""What each client shows for a wrong password. It is Kafka's text."""

Settings = dict[str, str]
TOPIC = "logins"


def kcat(settings: Settings, *, refused: bool = False) -> str:
    words = [word for key, value in settings.items() if key != "bootstrap.servers" for word in ("-X", f"{key}={value}")]
    patience_s = REFUSAL_S if refused else TIMEOUT_S
    command = ["kcat", "-b", settings["bootstrap.servers"], "-L", "-m", str(patience_s), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "" if done.returncode == 0 else done.stderr


def confluent(settings: Settings, *, refused: bool = False) -> str:
    errors: list[str] = []
    logger = logging.getLogger("quiet")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    client = AdminClient({**settings, "error_cb": lambda error: errors.append(error.str())}, logger=logger)
    try:
        client.list_topics(timeout=REFUSAL_S if refused else TIMEOUT_S)
    except KafkaException as error:
        client.poll(0)
        return "\n".join([str(error), *errors])
    return ""


def python_settings(settings: Settings) -> dict[str, Any]:
    """Returns the settings under the names of kafka-python, which aiokafka has too."""
    names = {
        "bootstrap.servers": "bootstrap_servers",
        "security.protocol": "security_protocol",
        "sasl.mechanism": "sasl_mechanism",
        "sasl.username": "sasl_plain_username",
        "sasl.password": "sasl_plain_password",
        "ssl.ca.location": "ssl_cafile",
        "ssl.certificate.location": "ssl_certfile",
        "ssl.key.location": "ssl_keyfile",
    }
    return {names[key]: value for key, value in settings.items()}


KAFKA_PYTHON = """
import json, logging, sys
logging.basicConfig(level=logging.WARNING)
from kafka import KafkaProducer
from kafka.errors import KafkaError
settings, topic, patience_ms = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
try:
    producer = KafkaProducer(bootstrap_timeout_ms=patience_ms, **settings)
    producer.send(topic, b"x").get(timeout=20)
except KafkaError as error:
    sys.exit(f"refused: {error!r}")
"""


def kafka_python(settings: Settings, *, refused: bool = False) -> str:
    """Runs kafka-python in a separate process, because it leaves sockets open if it can't connect."""
    given = json.dumps(python_settings(settings))
    command = [sys.executable, "-c", KAFKA_PYTHON, given, TOPIC, str((REFUSAL_S if refused else TIMEOUT_S) * 1000)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or "refused: " in done.stderr, done.stderr
    return done.stderr if done.returncode else ""


def aiokafka_client(settings: Settings, *, refused: bool = False) -> str:
    given = python_settings(settings)
    ca, certificate, key = (given.pop(name, None) for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"))
    if ca:
        given["ssl_context"] = context = ssl.create_default_context(cafile=ca)
        if certificate:
            context.load_cert_chain(certificate, key)

    async def send() -> str:
        producer = aiokafka.AIOKafkaProducer(**given)
        try:
            await producer.start()
            await producer.send_and_wait(TOPIC, b"x")
        except KafkaError as error:
            return f"{error!r}\n{lines.getvalue()}"
        finally:
            await producer.stop()
        return ""

    lines, logger = io.StringIO(), logging.getLogger("aiokafka")
    handler = logging.StreamHandler(lines)
    logger.addHandler(handler)
    try:
        return asyncio.run(send())
    finally:
        logger.removeHandler(handler)


def our_own(settings: Settings, *, refused: bool = False) -> str:
    """Logs in with our client: a refused password ends it at once; after a refused certificate it tries again."""
    with BlockingAdminClient(settings) as client:
        try:
            client.list_topics(timeout=REFUSAL_S if refused and "sasl.mechanism" not in settings else TIMEOUT_S)
        except AdminError as error:
            return f"{type(error).__name__}: {error}"
    return ""


Client = Callable[..., str]
CLIENTS: list[Client] = [kcat, confluent, kafka_python, aiokafka_client, our_own]


def clients_of_which_slow(*slow: Client) -> list[Any]:
    """Returns all clients as parameters; those named here are left to `make test-ci`."""
    return [pytest.param(client, marks=pytest.mark.slow if client in slow else ()) for client in CLIENTS]


def says_why(client: Client, reason: str) -> bool:
    """Returns whether the text of a refused login names the cause.

    kafka-python throws the answer away where it comes together with the end of the connection, as from Kafka, and
    reports that alone.
    """
    return INVALID in reason or (client is kafka_python and "socket disconnected" in reason)
