"""`make up SECURE=1` as processes: its services are started with the commands, variables and health checks of the two
files.

A container's paths and names become a folder and ports of this machine; the rest is as it is in the files.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

import pytest
import yaml

from tests.etcd import missing
from tests.free_ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
OPEN, SECURE = (
    yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))
    for name in ("docker-compose.yml", "docker-compose.secure.yml")
)
BROKERS = ("broker-1", "broker-2", "broker-3")
LIMIT_S = 120.0

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


class Services:
    """The services of both files, laid over each other, on ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.client = folder / "client-here"
        etcd, peer, self.console, *ports = free_ports(3 + 4 * len(BROKERS))
        self._peer = peer
        self._inside, self._outside, self._http, self._https = (
            dict(zip(BROKERS, ports[kind::4], strict=True)) for kind in range(4)
        )
        self._etcd = etcd
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def here(self, text: str, service: str = "") -> str:
        """Returns a word of the files, with what has an equivalent on this machine replaced by it, once."""
        here = {
            "/tmp/observer": f"{self.folder}/observer",
            "/run/observer": f"{self.folder}/observer",
            "0.0.0.0:${CONSOLE_PORT:-8080}": f"127.0.0.1:{self.console}",
            "${CONSOLE_PORT:-8080}": str(self.console),
            "${CLIENT_PATH:-.}": str(self.client),
            "/etc/lowtide": str(self.folder / "secure"),
            "/etcd-data": str(self.folder / "etcd"),
        }
        here |= {f"{host}:2379": f"127.0.0.1:{self._etcd}" for host in ("0.0.0.0", "127.0.0.1", "etcd")}
        for number, name in enumerate(BROKERS, 1):
            here[f"${{PORT_{number}:-{9091 + number}}}"] = str(self._outside[name])
            here[f"{name}:19092"] = f"127.0.0.1:{self._inside[name]}"
        if service in BROKERS:
            here["INSIDE://0.0.0.0:19092"] = f"INSIDE://127.0.0.1:{self._inside[service]}"
            here["OUTSIDE://0.0.0.0:9092"] = f"OUTSIDE://127.0.0.1:{self._outside[service]}"
            here["19092"] = str(self._inside[service])
            here["127.0.0.1:9643"] = f"127.0.0.1:{self._http[service]}"
            here["0.0.0.0:9644"] = f"127.0.0.1:{self._https[service]}"
        longest_first = "|".join(re.escape(each) for each in sorted(here, key=len, reverse=True))
        return re.sub(longest_first, lambda found: here[found[0]], text)

    def words(self, service: str) -> list[str]:
        words = [self.here(word, service) for word in SECURE["services"][service]["command"]]
        if service == "console":  # Its volume is mounted where those of the brokers are.
            words = [word.replace(f"{self.folder}/secure/", f"{self.folder}/secure/console/") for word in words]
        return words

    def lowtide(self, *words: str) -> None:
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, done.stderr

    def start(self, service: str) -> None:
        words, environment = self.words(service), {**os.environ, "ETCDCTL_API": "3"}
        if service == "etcd":
            peer = f"http://127.0.0.1:{self._peer}"
            words += [
                "--listen-peer-urls",
                peer,
                "--initial-advertise-peer-urls",
                peer,
                "--initial-cluster",
                f"etcd={peer}",
            ]
        elif service == "console":
            words = [*COMMAND, *words]
        else:
            given = OPEN["services"][service]["environment"] | SECURE["services"][service]["environment"]
            environment |= {name: self.here(text, service) for name, text in given.items()}
            environment["LOWTIDE_LOG_DIRS"] = str(self.folder / service)
            words = [*COMMAND, *words]
        self._processes[service] = subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    async def until_healthy(self, *services: str) -> None:
        """By the health checks of the files."""
        until = time.monotonic() + LIMIT_S
        for service in services:
            _, program, *words = self.check(service)
            command = [sys.executable if program == "python3" else program, *words]
            while (
                await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=LIMIT_S)
            ).returncode != 0:
                assert self._processes[service].poll() is None, f"{service} ended"
                assert time.monotonic() < until, f"{service} is not healthy"
                await asyncio.sleep(0.1)

    def check(self, service: str) -> list[str]:
        found = SECURE["services"][service].get("healthcheck") or OPEN["services"][service]["healthcheck"]
        return [self.here(word, service) for word in found["test"]]

    def observe(self) -> None:
        """What the observer does, which has `lowtide` in its path; it may be done again."""
        (self.folder / "observer").mkdir(exist_ok=True)
        shell, option, script = SECURE["services"]["observer"]["entrypoint"]
        path = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        done = subprocess.run(
            [shell, option, self.here(script)], capture_output=True, text=True, timeout=LIMIT_S, env=path, check=False
        )
        assert done.returncode == 0, done.stderr

    def metrics(self, broker: str, password: str) -> int:
        """Returns the status of a scrape by the user of Prometheus."""
        context = ssl.create_default_context(cafile=str(self.folder / "secure/ca.pem"))
        request = urllib.request.Request(f"https://localhost:{self._https[broker]}/metrics")
        request.add_header("Authorization", f"Basic {b64encode(f'prometheus:{password}'.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    def visit(self, path: str, body: bytes | None = None, cookie: str = "") -> tuple[int, str, bytes]:
        """Returns the status, the cookie and the body of an answer of the console, as a page gets them."""
        context = ssl.create_default_context(cafile=str(self.folder / "secure/console/ca.pem"))
        request = urllib.request.Request(f"https://localhost:{self.console}/console/api/{path}", body)
        for name, value in (("X-Lowtide-Console", "1"), ("Content-Type", "application/json"), ("Cookie", cookie)):
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT_S, context=context) as answer:
                given = answer.headers.get("Set-Cookie", "").partition(";")[0]
                return int(answer.status), given, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, "", error.read()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(LIMIT_S)


COMMAND = [sys.executable, "-m", "lowtide.cli.main"]


def recipe() -> list[str]:
    """Returns the Makefile's commands that add the users to the etcd."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (where,) = re.findall(r"^IN_ETCD := (.*)$", text, re.MULTILINE)
    (words,) = re.findall(r"certificates (users add \$\$user .*) \$\(IN_ETCD\)", text)
    return [*words.split(), *where.split()]


@pytest.mark.slow
async def test_the_services_of_a_secure_cluster(tmp_path: Path) -> None:
    services = Services(tmp_path)
    try:
        services.lowtide(*services.words("certificates"))
        services.start("etcd")
        await services.until_healthy("etcd")
        for user in ("admin", "broker"):
            services.lowtide(*(services.here(word.replace("$$user", user)) for word in recipe()))
        for broker in BROKERS:
            services.start(broker)
        await services.until_healthy(*BROKERS)
        shutil.copytree(tmp_path / "secure" / "client", services.client)  # As `docker cp` does.
        conf = str(services.client / "admin.conf")
        kcat(conf, "-P", "-t", "numbers", "-X", "acks=all", text="1\n2\n3\n")
        assert kcat(conf, "-C", "-t", "numbers", "-e", "-q").split() == ["1", "2", "3"]
        services.lowtide("cluster", "status", "--command-config", str(services.client / "admin.properties"))
        for _ in range(2):
            await asyncio.to_thread(services.observe)
        services.start("console")
        await services.until_healthy("console")
        assert (await asyncio.to_thread(services.visit, "view/topics"))[0] == 401
        admin = json.dumps({"user": "admin", "password": (tmp_path / "secure/admin.password").read_text().strip()})
        status, cookie, _ = await asyncio.to_thread(services.visit, "login", admin.encode())
        assert status == 200
        topics = await asyncio.to_thread(services.visit, "view/topics", None, cookie)
        assert b'"numbers"' in topics[2]
        assert not (tmp_path / "secure/console/broker.pem").exists()
        password = (tmp_path / "observer" / "password").read_text()
        for broker in BROKERS:
            assert await asyncio.to_thread(services.metrics, broker, password) == 200
            assert await asyncio.to_thread(services.metrics, broker, "guessed") == 401
        bare = ["etcdctl", *(word for word in services.check("etcd")[2:] if not word.startswith(("--cert", "--key")))]
        refused = subprocess.run(
            bare, capture_output=True, timeout=LIMIT_S, env={**os.environ, "ETCDCTL_API": "3"}, check=False
        )
        assert refused.returncode != 0, "etcd served a client without a certificate"
    finally:
        services.stop()


def kcat(conf: str, *words: str, text: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-F", conf, *words], input=text, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
