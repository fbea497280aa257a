"""An erasure from the command to the proof: a receipt is verified on the disks, and refuted by disks from before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from confluent_kafka import Producer

from lowtide.admin import BlockingAdminClient, NewTopic
from lowtide.testing.cluster import LowtideCluster

from .command_lines import run

PERSON, COUNT = "person-4711", 100


def test_a_receipt_is_verified_on_copied_disks(tmp_path: Path) -> None:
    """Protects what an auditor relies on: ledger, receipt and disks agree, and a disk with the records is found out."""
    key, receipt = tmp_path / "audit.key", tmp_path / "receipt.json"
    with LowtideCluster(brokers=1) as cluster:
        server = ("--bootstrap-server", cluster.bootstrap)
        with BlockingAdminClient(cluster.bootstrap) as admin:
            admin.create_topics([NewTopic(name="letters", partitions=1, replication_factor=1)])
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "zstd"})
        for number in range(COUNT):
            producer.produce("letters", b"v", PERSON if number % 7 == 3 else b"other")
        assert producer.flush(30) == 0
        directory = Path(cluster.data_directory)
        [folder] = directory.rglob("letters-0")
        before = tmp_path / "before" / folder.parent.name
        shutil.copytree(folder.parent, before)
        erased = run("records", "erase", "letters", "--key", PERSON, "--yes", "--output", "json", *server)
        told = json.loads(erased.stdout)
        run("erasures", "key", "create", key)
        asked = ("--signing-key", key, "--nonce", told["nonce"])
        receipt.write_text(run("erasures", "receipt", told["erasure_id"], *asked, *server).stdout)
        question = ("erasures", "verify", receipt, "--public-key", f"{key}.pub", "--key")
        verified = run(*question, PERSON, "--log-dirs", folder.parent)
        assert verified.stdout.splitlines()[-1] == "Verified."
        refuted = run(*question, PERSON, "--log-dirs", before, code=1)
        assert "offset 3:" in refuted.stdout
        assert "not about these keys" in run(*question, "other", "--log-dirs", folder.parent, code=2).stderr
