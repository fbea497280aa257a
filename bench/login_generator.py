"""Clients that log in by SCRAM-SHA-256 over TLS and leave: `python -m bench.login_generator PORT AUTHORITIES COUNT
RATE`.

RATE is logins a second, each begun when it is due, on a few threads; 0 has all connect first, and log in when all are
connected. Prints how many a second there were. Any failure ends it with an error.
"""

from __future__ import annotations

import os
import ssl
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lowtide.protocol.client.sasl import ClientSaslExchange, ClientSaslSettings
from lowtide.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from lowtide.protocol.messages.sasl_handshake import SaslHandshakeRequest

from .client import Client, check
from .targets import LOOPBACK

USER, PASSWORD, MECHANISM = "bench", "bench-password", "SCRAM-SHA-256"  # of a broker that lives for a workload
_THREADS = 8
_SETTINGS = ClientSaslSettings(mechanism=MECHANISM, username=USER, password=PASSWORD)
_VERSION = 1
"""The version of both requests of a login."""


def log_in(client: Client, context: ssl.SSLContext) -> None:
    """Connects, logs in one client, and closes it. Errors: OSError, BenchError, SaslError."""
    with client:
        client.socket = context.wrap_socket(client.socket, server_hostname=LOOPBACK)
        check(client.ask(SaslHandshakeRequest(mechanism=MECHANISM), _VERSION).error_code, "SaslHandshake")
        exchange, received = ClientSaslExchange(_SETTINGS, os.urandom(16).hex()), None
        while (token := exchange.step(received)) is not None:
            answer = client.ask(SaslAuthenticateRequest(auth_bytes=token), _VERSION)
            check(answer.error_code, "SaslAuthenticate")
            received = answer.auth_bytes


def main(words: Sequence[str]) -> None:
    """Logs in the requested number of clients."""
    port, count, rate = int(words[0]), int(words[2]), int(words[3])
    context = ssl.create_default_context(cafile=words[1])
    waiting = [Client((LOOPBACK, port)) for _ in range(0 if rate else count)]
    began = time.monotonic()

    def one(number: int) -> None:
        if rate:
            time.sleep(max(began + number / rate - time.monotonic(), 0))
        log_in(Client((LOOPBACK, port)) if rate else waiting[number], context)

    with ThreadPoolExecutor(_THREADS) as threads:
        for _ in threads.map(one, range(count)):
            pass
    print(count / (time.monotonic() - began))


if __name__ == "__main__":
    main(sys.argv[1:])
