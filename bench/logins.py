"""Measures logins by SCRAM over TLS: the cost of one, and the effect of many on other clients."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lowtide.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from lowtide.protocol.scram import ScramMechanism, salted_password

from . import watched_broker
from .client import check
from .errors import BenchError
from .figures import percentile
from .frames import batch, produce_error_position, produce_frame
from .loads import SMALL_RECORD_BYTES, now_ms
from .login_generator import MECHANISM, PASSWORD, USER
from .measure import Amounts, Figures, Workload, cost_of
from .pump import Lane, pump
from .targets import SecureTarget, Target
from .tls import Certificate
from .topics import topic_on

RATE = 200
"""Logins a second, as after a network failure."""

_REQUESTS_A_LOOK = 50
_LIMIT_S = 120.0
_SALT = b"a salt of sixteen"


def logins(target: Target, amounts: Amounts) -> Figures:
    """Measures clients that log in and leave: alone, beside a producer, all at once; and the loop's longest pass."""
    certificate = Certificate.of(target.scratch)
    with _serving(target.secured(certificate.chain)) as broker:
        _log_in(broker, certificate, 1, 0)
        with cost_of(broker.target) as cost:
            _log_in(broker, certificate, amounts.logins, RATE)
        figures = {"broker CPU ms a login": cost.cpu_s / amounts.logins * 1000}
        alone, _ = _produced(broker.target, None)
        beside, rate = _produced(broker.target, _generator(broker, certificate, amounts.logins, RATE))
        figures |= {
            "logins/s": rate,
            "a record without them, p50 us": percentile(alone, 0.5),
            "a record beside them, p50 us": percentile(beside, 0.5),
            "a record beside them, p99 us": percentile(beside, 0.99),
        }
    return figures | _holds(target, certificate, amounts)


def _holds(target: Target, certificate: Certificate, amounts: Amounts) -> Figures:
    """Measures the longest pass of the event loop of a watched broker."""
    path = target.scratch / "longest-hold"
    os.environ[watched_broker.VARIABLE] = str(path)
    secured = target.secured(certificate.chain)
    words = [watched_broker.__name__ if word == "lowtide.cli.main" else word for word in secured.target.spec.command]
    watched = secured._replace(target=Target(replace(secured.target.spec, command=tuple(words)), target.scratch))
    figures: Figures = {}
    with _serving(watched) as broker:
        _log_in(broker, certificate, 1, 0)
        for name, count, rate in ((f"{RATE}/s", amounts.logins, RATE), ("at once", amounts.logins, 0)):
            _longest_ms(broker.target, path)
            _log_in(broker, certificate, count, rate)
            figures[f"{name}, longest hold, CPU ms"] = _longest_ms(broker.target, path)
    return figures


def _longest_ms(target: Target, path: Path) -> float:
    """Returns the longest pass since the last call."""
    path.unlink(missing_ok=True)
    target.signal(signal.SIGUSR1)
    limit = time.monotonic() + _LIMIT_S
    while not path.exists():
        if time.monotonic() > limit:
            raise BenchError("the watched broker does not answer")
        time.sleep(0.01)
    return float(path.read_text())


@contextmanager
def _serving(broker: SecureTarget) -> Iterator[SecureTarget]:
    """Yields a started broker with the user."""
    try:
        broker.target.start()
        mechanism = ScramMechanism.SHA_256
        assert mechanism.text == MECHANISM
        salted = salted_password(mechanism, PASSWORD, _SALT, 4096)
        change = ScramCredentialUpsertion(
            name=USER, mechanism=mechanism, iterations=4096, salt=_SALT, salted_password=salted
        )
        with broker.target.connect() as client:
            answer = client.ask(AlterUserScramCredentialsRequest(deletions=[], upsertions=[change]), 0)
            check(answer.results[0].error_code, "AlterUserScramCredentials")
        yield broker
    finally:
        broker.target.close()


def _produced(target: Target, beside: subprocess.Popen[str] | None) -> tuple[list[float], float]:
    """Returns the latencies of a client that produces record after record while `beside` runs, and its output."""
    latencies: list[float] = []
    with topic_on(target, 1) as topic:
        frame, error_position = (
            produce_frame(topic.name, 0, batch(1, SMALL_RECORD_BYTES, now_ms())),
            produce_error_position(topic.name),
        )
        limit = time.monotonic() + _LIMIT_S
        while beside.poll() is None if beside is not None else len(latencies) < 20 * _REQUESTS_A_LOOK:
            load = pump(
                [Lane(topic.leaders[0], itertools.repeat(frame))], count=_REQUESTS_A_LOOK, error_position=error_position
            )
            latencies += load.latencies_us
            if time.monotonic() > limit:
                break
    return sorted(latencies), 0.0 if beside is None else _rate(beside)


def _generator(broker: SecureTarget, certificate: Certificate, count: int, rate: int) -> subprocess.Popen[str]:
    words = [str(broker.logins[1]), str(certificate.authorities), str(count), str(rate)]
    command = [sys.executable, "-m", "bench.login_generator", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _log_in(broker: SecureTarget, certificate: Certificate, count: int, rate: int) -> float:
    """Runs this number of logins. Returns their rate per second."""
    return _rate(_generator(broker, certificate, count, rate))


def _rate(generator: subprocess.Popen[str]) -> float:
    try:
        out, errors = generator.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        generator.kill()
        generator.communicate()
        raise BenchError(f"the logins did not end within {_LIMIT_S:.0f} s") from None
    if generator.returncode:
        raise BenchError(f"a login failed: {errors.strip().splitlines()[-1]}")
    return float(out)


WORKLOADS = {
    "logins": Workload(
        run=logins,
        says="clients that log in by SCRAM-SHA-256 over TLS and leave; other clients beside them",
        headline=("broker CPU ms a login", "a record beside them, p50 us", "at once, longest hold, CPU ms"),
        warms=False,
        starts=True,
        over_tls=True,
    )
}
