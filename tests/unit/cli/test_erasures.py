"""`lowtide erasures`: signing keys and their chains, receipts from an export, and verification on copied disks."""

from __future__ import annotations

import json
import random
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lowtide.admin.receipts.commitment import commitment, keys_selector
from lowtide.admin.receipts.envelope import ReceiptError, open_envelope
from lowtide.admin.receipts.issuing import make_receipt, partitions_of
from lowtide.admin.receipts.ledger import Ledger, export_lines
from lowtide.admin.receipts.signing_keys import KEY_BYTES_MAX, SigningKey, SigningKeyError, create_key, signing_key
from lowtide.admin.receipts.statement import ChainLink, ErasureReceipt, read_statement, rfc3339
from lowtide.cli.copied_disks import DiskSearch, check_directory, log_directories
from lowtide.cli.main import main
from lowtide.protocol.batch_building import build_batch
from lowtide.protocol.compression import Compression
from lowtide.protocol.erasure_ledger_records import SelectorKind, encode_entry
from lowtide.runtime.filesystem import OsFileSystem
from lowtide.storage.checkpoint import MetaProperties, encode_meta_properties, encode_partition_metadata
from tests.unit.admin.ledger_rows import END, ERASURE, TIME_MS, TOPIC_ID, clean, named

FILES = OsFileSystem()
ERASED = (103, 107, 108)
PERSON = b"person-4711"
NONCE = bytes(range(32))
COMMITMENT = commitment(NONCE, SelectorKind.KEYS, keys_selector([PERSON]))
HEX = "0123456789abcdef" * 2


def run(capsys, *words: object, code: int = 0) -> str:
    assert main(["erasures", *map(str, words)]) == code
    captured = capsys.readouterr()
    return captured.out if code < 2 and not captured.err else captured.err


@pytest.fixture
def key(tmp_path: Path, capsys) -> Path:
    run(capsys, "key", "create", tmp_path / "key")
    return tmp_path / "key"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    rows = dict(map(encode_entry, [named(commitment=COMMITMENT), clean(1), clean(2), clean(3, erasures_end=50)]))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"".join(export_lines(Ledger("cluster", rows))))
    return path


@pytest.fixture
def receipt(tmp_path: Path, key: Path, exported: Path, capsys) -> Path:
    return issue(capsys, key, exported, tmp_path / "receipt.json")


def issue(capsys, key: Path, exported: Path, path: Path) -> Path:
    words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported, "--nonce", NONCE.hex())
    path.write_text(run(capsys, *words))
    return path


def statement_of(link: ChainLink) -> ErasureReceipt:
    found = partitions_of([named(), clean(1)], ERASURE.bytes)
    return make_receipt(link, "cluster", str(ERASURE), found, None, [])


class TestKeys:
    def test_only_the_owner_reads_a_key_and_its_chain(self, key: Path):
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in key.parent.glob("key*")}
        assert modes == {"key": 0o600, "key.chain": 0o600, "key.pub": 0o644}

    def test_a_key_that_others_may_read_is_refused(self, key: Path, exported: Path, capsys):
        key.chmod(0o640)
        words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported)
        assert "other users may read" in run(capsys, *words, code=2)

    def test_an_existing_key_is_not_replaced(self, key: Path, capsys):
        before = key.read_bytes()
        assert "exists already" in run(capsys, "key", "create", key, code=2)
        (key.parent / "key.chain").unlink()
        assert "exists already" in run(capsys, "key", "create", key, code=2)
        assert key.read_bytes() == before

    def test_a_key_without_its_chain_signs_nothing(self, key: Path, exported: Path, capsys):
        (key.parent / "key.chain").unlink()
        words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported)
        assert "key.chain is missing" in run(capsys, *words, code=2)

    def test_two_commands_do_not_sign_at_once(self, key: Path, exported: Path, capsys):
        with signing_key(FILES, str(key)):
            words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported)
            assert "another command is signing" in run(capsys, *words, code=2)

    def test_a_receipt_that_was_not_printed_keeps_its_number(self, key: Path, exported: Path, receipt: Path, capsys):
        """The chain has the statement before it is printed, so a crash leaves no gap and no second number."""
        assert run(capsys, "receipt", "--last", "--signing-key", key) == receipt.read_text()
        issue(capsys, key, exported, receipt.parent / "lost.json")
        (receipt.parent / "lost.json").unlink()
        second, third = (receipt.parent / name for name in ("second.json", "third.json"))
        second.write_text(run(capsys, "receipt", "--last", "--signing-key", key))
        issue(capsys, key, exported, third)
        found = run(capsys, "verify", third, receipt, second, "--public-key", f"{key}.pub")
        assert found.endswith("Verified.\n")
        assert "number 2 is missing" in run(capsys, "verify", third, receipt, "--public-key", f"{key}.pub", code=1)

    def test_a_crash_before_the_chain_is_written_signs_nothing(self, key: Path, exported: Path, capsys, monkeypatch):
        def crash(*_, **__) -> None:
            raise OSError(28, "No space left on device", "key.chain")

        with monkeypatch.context() as patch:
            patch.setattr(OsFileSystem, "replace_file", crash)
            words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported)
            assert "No space left" in run(capsys, *words, code=2)
        issue(capsys, key, exported, key.parent / "first.json")
        assert "number 1," in run(capsys, "verify", key.parent / "first.json", "--public-key", f"{key}.pub")

    def test_a_new_key_continues_the_chain(self, key: Path, exported: Path, receipt: Path, capsys):
        new, rotation, after = (key.parent / name for name in ("new", "rotation.json", "after.json"))
        rotation.write_text(run(capsys, "key", "rotate", new, "--signing-key", key))
        issue(capsys, new, exported, after)
        found = run(capsys, "verify", receipt, rotation, after, "--public-key", f"{key}.pub")
        assert "number 3, erasure" in found
        assert "was replaced by the key" in run(
            capsys, "receipt", ERASURE, "--signing-key", key, "--from-export", exported, code=2
        )
        assert "was replaced by the key" in run(
            capsys, "key", "rotate", key.parent / "third", "--signing-key", key, code=2
        )
        assert not (key.parent / "third").exists()
        assert "not trusted" in run(capsys, "verify", receipt, after, "--public-key", f"{key}.pub", code=1)
        both = ("--public-key", f"{key}.pub", "--public-key", f"{new}.pub")
        assert "Verified" in run(capsys, "verify", receipt, after, *both)

    def test_a_rotation_that_crashed_is_completed(self, key: Path, capsys, monkeypatch):
        new = key.parent / "new"
        genuine = SigningKey.sign

        def crash(self, make, now_ms):
            genuine(self, make, now_ms)
            raise OSError(5, "crash", "new.chain")

        with monkeypatch.context() as patch:
            patch.setattr(SigningKey, "sign", crash)
            run(capsys, "key", "rotate", new, "--signing-key", key, code=2)
        with signing_key(FILES, str(new)) as half, pytest.raises(SigningKeyError, match="is missing"):
            half.last()
        rotation = run(capsys, "key", "rotate", new, "--signing-key", key)
        assert (key.parent / "new.chain").read_text() == rotation == (key.parent / "key.chain").read_text()

    def test_a_key_that_exists_is_not_rotated_to(self, key: Path, tmp_path: Path, capsys):
        """Protects the chain of another key from being replaced."""
        run(capsys, "key", "create", tmp_path / "other")
        before = [(tmp_path / name).read_bytes() for name in ("other", "key.chain")]
        assert "exists already" in run(capsys, "key", "rotate", tmp_path / "other", "--signing-key", key, code=2)
        assert [(tmp_path / name).read_bytes() for name in ("other", "key.chain")] == before

    def test_no_key_is_created_beside_the_chain_of_another(self, key: Path, capsys):
        """Protects numbers: a lost key that is put back continues its chain."""
        for suffix in ("", ".pub"):
            Path(f"{key}{suffix}").unlink()
        assert "key.chain exists already" in run(capsys, "key", "create", key, code=2)
        assert not key.exists()

    def test_a_damaged_chain_signs_nothing(self, key: Path, exported: Path, receipt: Path, capsys):
        chain = key.parent / "key.chain"
        chain.write_bytes(chain.read_bytes()[:-2])
        words = ("receipt", ERASURE, "--signing-key", key, "--from-export", exported)
        assert "not an envelope of a receipt" in run(capsys, *words, code=2)

    def test_an_error_frees_the_key(self, key: Path):
        with pytest.raises(SigningKeyError) as caught, signing_key(FILES, str(key)):
            raise ReceiptError("no receipt")
        assert str(caught.value) == "no receipt."
        with signing_key(FILES, str(key)) as again:
            assert again.last() is None

    def test_the_clock_may_go_back(self, key: Path):
        """Protects the chain: a statement is never earlier than the one before it."""
        times = []
        for now_ms in (TIME_MS, TIME_MS - 1000, TIME_MS + 1000):
            with signing_key(FILES, str(key)) as opened:
                signed = open_envelope(opened.sign(statement_of, now_ms))
            times.append(read_statement(signed).issued_at)
        assert times == [rfc3339(TIME_MS), rfc3339(TIME_MS), rfc3339(TIME_MS + 1000)]

    @pytest.mark.parametrize("name", ["key", "key.pub"])
    def test_a_key_of_another_algorithm_is_refused(self, key: Path, receipt: Path, name: str, capsys):
        other = X25519PrivateKey.generate()
        private = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        public = other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (key.parent / name).write_bytes(private if name == "key" else public)
        words = ("--last", "--signing-key", key) if name == "key" else (receipt, "--public-key", f"{key}.pub")
        command = "receipt" if name == "key" else "verify"
        assert f"{name} is not an Ed25519 key." in run(capsys, command, *words, code=2)

    def test_a_large_file_is_no_key(self, key: Path, receipt: Path, capsys):
        words = ("receipt", "--last", "--signing-key", key)
        content = key.read_bytes()
        key.write_bytes(content.ljust(KEY_BYTES_MAX, b"\n"))
        assert run(capsys, *words) == receipt.read_text()
        key.write_bytes(content.ljust(KEY_BYTES_MAX + 1, b"\n"))
        assert "too large for a key" in run(capsys, *words, code=2)

    def test_the_wrong_kind_of_file_is_no_key(self, tmp_path: Path, receipt: Path, key: Path, capsys):
        (tmp_path / "wrong").write_text("nonsense")
        (tmp_path / "wrong").chmod(0o600)
        assert "not a public key" in run(capsys, "verify", receipt, "--public-key", tmp_path / "wrong", code=2)
        assert "not a private key" in run(capsys, "receipt", "--last", "--signing-key", tmp_path / "wrong", code=2)
        assert "No such file" in run(capsys, "verify", receipt, "--public-key", tmp_path / "none", code=2)


class TestLedger:
    def test_a_beginning_has_no_search_but_its_disks_are_checked(self, key: Path, exported: Path, tmp_path, capsys):
        """`--erase` writes confirmations only: no record may be below their offset."""
        exported.write_bytes(b"".join(export_lines(Ledger("cluster", dict([encode_entry(clean(1))])))))
        path = issue(capsys, key, exported, tmp_path / "beginning.json")
        words = ("verify", path, "--public-key", f"{key}.pub", "--log-dirs", disk(tmp_path, "one"))
        assert "Verified" in run(capsys, *words)
        (tmp_path / "one" / "flights-0" / f"{0:020d}.log").write_bytes(batch([(99, TIME_MS, b"k")]))
        assert "offset 99: an erased record is still there" in run(capsys, *words, code=1)
        assert "beginning" in run(capsys, "list", "--from-export", exported)

    def test_the_ledger_is_listed_and_shown(self, exported: Path, capsys):
        row = json.loads(run(capsys, "list", "--from-export", exported, "--output", "json"))["erasures"][0]
        assert (row["erasure"], row["kind"], row["records"]) == (str(ERASURE), "keys", 3)
        shown = run(capsys, "show", ERASURE, "--from-export", exported)
        assert "1, 2" in shown
        assert "User:eve" in run(capsys, "list", "--from-export", exported)

    def test_an_unknown_erasure_is_an_error(self, exported: Path, capsys):
        words = ("show", "00000000-0000-0000-0000-000000000001", "--from-export", exported)
        assert "has no record of the erasure" in run(capsys, *words, code=1)

    @pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"key":"AAAA"}'])
    def test_a_damaged_export_is_refused_with_its_line(self, exported: Path, line: bytes, capsys):
        exported.write_bytes(exported.read_bytes() + line + b"\n")
        assert "line 6 is not that of an export" in run(capsys, "list", "--from-export", exported, code=2)


def disk(tmp_path: Path, name: str, broker: int = 1) -> Path:
    """Returns a log directory of broker `broker` with an empty partition."""
    path = tmp_path / name
    (path / "flights-0").mkdir(parents=True)
    properties = MetaProperties(cluster_id="cluster", node_id=broker, directory_id=bytes([broker]) * 16)
    (path / "meta.properties").write_bytes(encode_meta_properties(properties))
    (path / "flights-0" / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
    (path / "flights-0" / f"{100:020d}.log").write_bytes(segment())
    return path


def segment(*, put_back: int | None = None, compression: Compression = Compression.NONE, person: int = 0) -> bytes:
    """Returns batches with all offsets from 100 to 119 but the erased ones. `person`: an offset with their key."""
    batches = []
    for base in (100, 106, 112):
        rows = []
        for offset in range(base, base + 6):
            if offset not in ERASED or offset == put_back:
                name = PERSON if offset in (person, put_back) else b"k%d" % offset
                rows.append((offset, TIME_MS + offset, name))
        batches.append(batch(rows, compression))
    return b"".join(batches)


def batch(rows: list[tuple[int, int, bytes]], compression: Compression = Compression.NONE) -> bytes:
    """Returns one batch; consecutive batches stand for gaps."""
    parts: list[list[tuple[int, int, bytes]]] = []
    for row in rows:
        if parts and parts[-1][-1][0] + 1 == row[0]:
            parts[-1].append(row)
        else:
            parts.append([row])
    return b"".join(
        build_batch(
            [(time, name, b"v", ()) for _, time, name in part],
            base_offset=part[0][0],
            leader_epoch=2,
            compression=compression,
        )
        for part in parts
    )


PLACES = (
    f"flights-0/{100:020d}.log",
    f"flights-0/{100:020d}.log.cleaned",
    f"flights-0/{100:020d}.log.swap",
    f"flights-0/{100:020d}.log.deleted",
    f"flights-0.{HEX}-future/{100:020d}.log",
    f"flights-0.{HEX}-delete/{100:020d}.log.deleted",
    f"flights-0.{HEX}-stray/{100:020d}.log",
    f"renamed/{100:020d}.log",
    f"lowtide-processes/2/flights-0/{100:020d}.log",
)


class TestDisks:
    def verify(self, capsys, receipt: Path, *words: object, code: int = 0) -> dict:
        text = run(
            capsys, "verify", receipt, "--public-key", receipt.parent / "key.pub", "--output", "json", *words, code=code
        )
        return json.loads(text)

    def test_clean_disks_pass_and_missing_ones_are_named(self, tmp_path: Path, receipt: Path, capsys):
        found = self.verify(capsys, receipt, "--log-dirs", disk(tmp_path, "one"))
        assert found["verified"]
        assert [(each["broker"], each["files"]) for each in found["directories"]] == [(1, 1)]
        assert [each["broker"] for each in found["not_given"]] == [2]
        both = f"{tmp_path / 'one'},{disk(tmp_path, 'two', 2)}"
        assert self.verify(capsys, receipt, "--log-dirs", both)["not_given"] == []

    def test_a_record_at_the_same_offset_of_another_epoch_or_time_is_another_record(self, tmp_path, receipt, capsys):
        path = disk(tmp_path, "one")
        rows = [(103, TIME_MS + 5, b"other")]
        (path / "flights-0" / f"{100:020d}.log").write_bytes(batch(rows))
        assert self.verify(capsys, receipt, "--log-dirs", path)["verified"]

    def test_records_with_the_key_below_and_after_the_end_are_told_apart(self, tmp_path, receipt, capsys):
        path = disk(tmp_path, "one")
        late = batch([(END, TIME_MS + END, PERSON)])
        (path / "flights-0" / f"{100:020d}.log").write_bytes(segment(person=115) + late)
        found = self.verify(capsys, receipt, "--log-dirs", path, "--key", PERSON.decode(), code=1)
        assert [(each["kind"], each["offset"]) for each in found["findings"]] == [
            ("key_still_there", 115),
            ("key_came_back", END),
        ]
        assert self.verify(capsys, receipt, "--log-dirs", path)["verified"], "nobody knows without the key"

    def test_a_replay_has_searched_for_no_key(self, tmp_path: Path, key: Path, capsys):
        """It ended at 990, but what lies below was not searched: only named records were looked for."""
        path, exported = disk(tmp_path, "one"), tmp_path / "replayed.jsonl"
        rows = dict(map(encode_entry, [named(searched_to=990, commitment=COMMITMENT, is_replay=True), clean(1)]))
        exported.write_bytes(b"".join(export_lines(Ledger("cluster", rows))))
        (path / "flights-0" / f"{100:020d}.log").write_bytes(segment(person=115))
        receipt = issue(capsys, key, exported, tmp_path / "replayed.json")
        found = self.verify(capsys, receipt, "--log-dirs", path, "--key", PERSON.decode(), code=1)
        assert [(each["kind"], each["offset"]) for each in found["findings"]] == [("key_came_back", 115)]

    def test_another_key_than_the_erased_one_is_refused(self, tmp_path, receipt, capsys):
        words = ("--log-dirs", disk(tmp_path, "one"), "--key", "somebody")
        text = run(capsys, "verify", receipt, "--public-key", tmp_path / "key.pub", *words, code=2)
        assert "not about these keys" in text

    def test_without_the_nonce_the_key_is_searched_for_but_not_proven(self, tmp_path, key, exported, capsys):
        path = tmp_path / "bare.json"
        path.write_text(run(capsys, "receipt", ERASURE, "--signing-key", key, "--from-export", exported))
        words = ("--log-dirs", disk(tmp_path, "one"), "--key", PERSON.decode())
        assert "a nonce is missing" in self.verify(capsys, path, *words)["remarks"][0]
        assert self.verify(capsys, path, *words, "--nonce", NONCE.hex())["remarks"] == []

    def test_bytes_that_cannot_be_read_are_a_finding(self, tmp_path, receipt, capsys):
        path = disk(tmp_path, "one")
        content = bytearray(segment())
        content[70] ^= 1
        (path / "flights-0" / f"{100:020d}.log").write_bytes(content)
        found = self.verify(capsys, receipt, "--log-dirs", path, code=1)
        assert [each["kind"] for each in found["findings"]] == ["unreadable"]

    def test_a_folder_that_is_no_log_directory_is_refused(self, tmp_path, receipt, capsys):
        words = ("verify", receipt, "--public-key", tmp_path / "key.pub", "--log-dirs", tmp_path)
        assert "not a log directory" in run(capsys, *words, code=2)

    def test_the_beginning_that_was_erased_has_no_record(self, tmp_path):
        path = disk(tmp_path, "one")
        search = DiskSearch("flights", TOPIC_ID, 0, beginning=102)
        (directory,) = log_directories(FILES, [str(path)])
        assert [each.offset for each in check_directory(FILES, directory, [search])] == [100, 101]

    def test_another_topic_of_the_same_name_is_not_searched(self, tmp_path):
        path = disk(tmp_path, "one")
        search = DiskSearch("flights", bytes(15) + b"x", 0, beginning=102)
        (directory,) = log_directories(FILES, [str(path)])
        assert list(check_directory(FILES, directory, [search])) == []
        assert directory.folders == 0

    def test_five_hundred_disks_with_a_record_put_back_are_found(self, tmp_path: Path):
        """Each codec, in each folder and kind of file that may hold records, also where the topic id is lost."""
        choose = random.Random(41)
        path = disk(tmp_path, "one")
        inner = disk(path / "lowtide-processes", "2", 2)
        (inner / "flights-0" / f"{100:020d}.log").unlink()
        search = DiskSearch("flights", TOPIC_ID, 0, named={each: {(2, TIME_MS + each)} for each in ERASED})
        search_keys = DiskSearch("flights", TOPIC_ID, 0, key_ends={PERSON: END})
        for place in PLACES:
            folder = (path / place).parent
            folder.mkdir(exist_ok=True)
            if choose.random() < 0.5 or folder.name == "renamed":
                (folder / "partition.metadata").write_bytes(encode_partition_metadata(TOPIC_ID))
        missed = []
        for turn in range(500):
            changed, offset = path / choose.choice(PLACES), choose.choice(ERASED)
            before = changed.read_bytes() if changed.exists() else None
            changed.write_bytes(segment(put_back=offset, compression=choose.choice(list(Compression))))
            wanted = choose.choice([search, search_keys])
            directories = log_directories(FILES, [str(path)])
            found = [each for directory in directories for each in check_directory(FILES, directory, [wanted])]
            if [(each.file, each.offset) for each in found] != [(str(changed), offset)]:
                missed.append((turn, changed.name, found))
            if before is None:
                changed.unlink()
            else:
                changed.write_bytes(before)
        assert missed == []


def test_a_too_large_file_is_no_receipt(tmp_path: Path, key: Path, capsys):
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(65 << 20)
    assert "too large for a receipt" in run(capsys, "verify", path, "--public-key", f"{key}.pub", code=2)


def test_create_key_returns_its_id(tmp_path: Path):
    assert len(create_key(FILES, str(tmp_path / "k"))) == 64
