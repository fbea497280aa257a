"""Catalogs and a store of tables as clouds have them, on loopback: Iceberg's own REST catalog, Glue, and S3.

Maven brings the REST catalog, which is that of Iceberg's own tests, and PyPI brings moto, which stands in for AWS.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.free_ports import free_ports

from .table_readers import CACHE, LIMIT_S, SQLITE, jars

ICEBERG_VERSION = "1.11.0"
JETTY = "org.eclipse.jetty:jetty-servlet:11.0.25"
MOTO = "moto[server,glue,s3]==5.2.5"
CLIENTS = {"boto": "boto3>=1.40", "s3fs": "s3fs>=2025.3"}
PROGRAM = Path(__file__).parent / "catalogs" / "RestCatalog.java"
BUCKET, REGION = "lake", "us-east-1"
KEYS = {"access-key-id": "key", "secret-access-key": "secret"}


def packages(name: str, *wanted: str) -> Path:
    """Returns a folder with Python packages; pip installs them if they are missing."""
    folder = CACHE / f"table-{name}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            building = Path(scratch) / "packages"
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(building), *wanted]
            subprocess.run(command, check=True, timeout=LIMIT_S)
            building.rename(folder)
    return folder


def jars_of_rest_catalog() -> list[Path]:
    """Returns the jars of the REST catalog."""
    names = ("iceberg-core:{}", "iceberg-core:{}:tests", "iceberg-aws:{}", "iceberg-aws-bundle:{}")
    iceberg = [f"org.apache.iceberg:{name.format(ICEBERG_VERSION)}" for name in names]
    return jars("iceberg-rest", *iceberg, SQLITE, JETTY, with_others=True)


@contextmanager
def served(command: list[str], url: str, log: Path, **environment: str) -> Iterator[str]:
    """Runs a server until the end, and yields its address once it answers."""
    with log.open("ab") as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=words, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
        )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(url, timeout=10).close()
                break
            except urllib.error.HTTPError:
                break
            except OSError:
                assert process.poll() is None, log.read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline, f"{url} does not answer"
                time.sleep(0.05)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)


@contextmanager
def aws(folder: Path) -> Iterator[dict[str, str]]:
    """Runs a stand-in for S3 and Glue with one bucket. Yields the properties of a catalog that use it."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with served(command, url, folder / "aws.log", PYTHONPATH=str(packages("moto", MOTO))):
        urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=60).close()
        keys = {f"s3.{name}": value for name, value in KEYS.items()}
        yield {"s3.endpoint": url, "s3.region": REGION, "s3.path-style-access": "true", **keys}


@contextmanager
def rest_catalog(folder: Path, store: dict[str, str]) -> Iterator[dict[str, str]]:
    """Runs Iceberg's REST catalog over the store. Yields the properties with which PyIceberg opens it."""
    (port,) = free_ports(1)
    settings = {
        "uri": f"jdbc:sqlite:{folder}/rest.db",
        "jdbc.schema-version": "V1",
        "warehouse": f"s3://{BUCKET}/rest",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        **store,
    }
    path = ":".join(map(str, jars_of_rest_catalog()))
    command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", path, str(PROGRAM)]
    words = [str(port), *(f"{key}={value}" for key, value in settings.items())]
    with served([*command, *words], f"http://127.0.0.1:{port}/v1/config", folder / "rest.log", AWS_REGION=REGION):
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}", **store}


def glue_catalog(store: dict[str, str]) -> dict[str, str]:
    """Returns the properties with which PyIceberg opens Glue in the stand-in."""
    return {
        "type": "glue",
        "glue.endpoint": store["s3.endpoint"],
        "glue.region": REGION,
        **{f"glue.{name}": value for name, value in KEYS.items()},
        "warehouse": f"s3://{BUCKET}/glue",
        **store,
    }
