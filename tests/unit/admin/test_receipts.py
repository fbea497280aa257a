"""Receipts: the commitment has one form for each selector, and no change of a set of receipts passes verification."""

from __future__ import annotations

import base64
import json
import random

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from lowtide.admin.receipts import envelope
from lowtide.admin.receipts.chain import VerifiedChain, verify_chain
from lowtide.admin.receipts.commitment import (
    commitment,
    header_selector,
    is_committed,
    keys_selector,
    offsets_selector,
)
from lowtide.admin.receipts.envelope import (
    RECEIPT_TYPE,
    ReceiptError,
    canonical_json,
    key_id_of,
    open_envelope,
    public_bytes,
    seal,
)
from lowtide.admin.receipts.issuing import ALWAYS, ONLY_TABLES, TABLES, make_receipt, partitions_of
from lowtide.admin.receipts.statement import (
    NO_DIGEST,
    ChainLink,
    ErasureReceipt,
    KeyRotation,
    NamedFiles,
    TableStatement,
    payload_type_of,
    read_statement,
    rfc3339,
)
from lowtide.protocol.erasure_ledger_records import CleanReplica, LedgerEntry, SelectorKind, StandingKey, StandingSearch
from lowtide.protocol.offset_ranges import OffsetRanges
from lowtide.protocol.types import TopicPartition
from tests.unit.admin.ledger_rows import ERASURE, PLACE, TIME_MS, TOPIC_ID, clean, named

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
NEW = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(2, 34)))
NONCE = bytes(32)
LINK = ChainLink(number=1, previous=NO_DIGEST, issued_at=rfc3339(TIME_MS), key_id="0" * 64)

keys = st.frozensets(st.binary(max_size=4), max_size=4)


@given(keys, keys)
def test_two_sets_of_keys_have_the_same_form_only_if_they_are_equal(one, other):
    assert (keys_selector(one) == keys_selector(other)) == (one == other)
    assert keys_selector(sorted(one, reverse=True)) == keys_selector(one)


header = st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=3))


@given(header, header)
def test_two_headers_have_the_same_form_only_if_they_are_equal(one, other):
    assert (header_selector(*one) == header_selector(*other)) == (one == other)


places = st.builds(TopicPartition, st.text(max_size=2), st.integers(0, 2))
offsets = st.dictionaries(places, st.frozensets(st.integers(0, 9), min_size=1, max_size=5), max_size=3)


@given(offsets, offsets)
@example({TopicPartition("a", 0): {1}}, {TopicPartition("b", 0): {1}})
@example({TopicPartition("a", 0): {1}}, {TopicPartition("a", 0): {2}})
def test_two_sets_of_offsets_have_the_same_form_only_if_they_are_equal(one, other):
    forms = [
        offsets_selector({place: OffsetRanges.of_offsets(found) for place, found in each.items()})
        for each in (one, other)
    ]
    assert (forms[0] == forms[1]) == (one == other)


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32), keys)
def test_a_commitment_holds_for_its_nonce_kind_and_selector_only(nonce, other, chosen):
    selector = keys_selector(chosen)
    committed = commitment(nonce, SelectorKind.KEYS, selector)
    assert is_committed(committed, nonce, SelectorKind.KEYS, selector)
    assert not is_committed(committed, nonce, SelectorKind.OFFSETS, selector)
    assert not is_committed(committed, nonce, SelectorKind.KEYS, selector + b"x")
    assert is_committed(committed, other, SelectorKind.KEYS, selector) == (nonce == other)


def test_a_nonce_of_another_length_is_refused():
    with pytest.raises(ValueError, match="16 bytes instead of 32"):
        commitment(bytes(16), SelectorKind.KEYS, b"")


def entries() -> list[LedgerEntry]:
    return [named(), clean(1), clean(2, erasures_end=50)]


def receipt(link: ChainLink, replicas=None) -> ErasureReceipt:
    found = partitions_of(entries(), ERASURE.bytes)
    return make_receipt(link, "cluster", str(ERASURE), found, replicas, [NONCE])


def chain(count: int, *, rotate_at: int = 0) -> list[bytes]:
    """Returns receipts; number `rotate_at` hands the chain over to the new key."""
    files: list[bytes] = []
    key, previous = KEY, NO_DIGEST
    for number in range(1, count + 1):
        link = ChainLink(
            number=number,
            previous=previous,
            issued_at=rfc3339(TIME_MS + number),
            key_id=key_id_of(key.public_key()),
        )
        statement = receipt(link)
        if number == rotate_at:
            new = NEW.public_key()
            statement = KeyRotation(
                number=link.number,
                previous=link.previous,
                issued_at=link.issued_at,
                key_id=link.key_id,
                new_key=public_bytes(new).hex(),
                new_key_id=key_id_of(new),
            )
        files.append(seal(payload_type_of(statement), canonical_json(statement), key))
        previous = open_envelope(files[-1]).digest
        if number == rotate_at:
            key = NEW
    return files


def verify(files: list[bytes], *public) -> VerifiedChain:
    return verify_chain(((f"f{place}", each) for place, each in enumerate(files)), public or (KEY.public_key(),))


def kinds(files: list[bytes], *public) -> list[str]:
    return [each.kind for each in verify(files, *public).findings]


def test_a_receipt_says_what_the_ledger_has():
    signed = open_envelope(chain(1)[0])
    statement = read_statement(signed)
    assert isinstance(statement, ErasureReceipt)
    (partition,) = statement.partitions
    (search,) = partition.searches
    assert (partition.topic, search.kind, search.records, search.committed_at is not None) == (
        "flights",
        "keys",
        3,
        True,
    )
    assert [each.broker for each in partition.confirmed] == [1], "broker 2 has confirmed an earlier erasure only"
    assert partition.not_confirmed == [2]
    assert "flights-0: not confirmed by broker 2." in statement.not_covered
    assert any("replicas were unknown" in each for each in statement.not_covered)
    payload = base64.b64decode(json.loads(chain(1)[0])["payload"])
    assert (
        payload == json.dumps(json.loads(payload), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    )


def test_a_replica_without_a_record_in_the_ledger_is_named():
    (partition,) = receipt(LINK, {PLACE: (1, 2, 3)}).partitions
    assert (partition.not_confirmed, partition.replicas_known) == ([2, 3], True)


def test_a_replay_is_told_from_a_search():
    """It looked only for named records, so it proves nothing about others of the key."""
    found = partitions_of([named(is_replay=True), clean(1)], ERASURE.bytes)
    made = make_receipt(LINK, "cluster", str(ERASURE), found, {PLACE: (1,)}, [])
    assert made.partitions[0].searches[0].is_replay
    assert "flights-0: a replay erased what an export names; nothing else was searched for then." in made.not_covered


def test_the_commit_replaces_the_record_before_it():
    found = partitions_of([named(committed_ms=-1, erasures_end=-1), named()], ERASURE.bytes)
    assert [each.committed_ms for each in found[PLACE].named.values()] == [TIME_MS + 1]


def test_without_a_record_of_the_ledger_there_is_no_receipt():
    with pytest.raises(ReceiptError, match="no record of this erasure"):
        make_receipt(LINK, "cluster", str(ERASURE), partitions_of(entries(), bytes(16)), None, [])


def partition_of(*rows: LedgerEntry, replicas=(1, 2, 3)):
    """Returns what a receipt says about the only partition of an erasure."""
    made = make_receipt(LINK, "cluster", str(ERASURE), partitions_of(rows, ERASURE.bytes), {PLACE: replicas}, [])
    (partition,) = made.partitions
    return partition


def test_records_about_other_erasures_and_tombstones_say_nothing():
    other = LedgerEntry(msgspec.structs.replace(clean(3).key, erasure_id=bytes(16)), clean(3).value)
    standing = LedgerEntry(
        StandingKey(topic_id=TOPIC_ID, partition=0),
        StandingSearch(topic="flights", searched_to=1, leader_epoch=0, searched_ms=1),
    )
    partition = partition_of(other, standing, named(), clean(1), clean(2), LedgerEntry(clean(2).key, None))
    assert (len(partition.searches), partition.not_confirmed) == (1, [2, 3])
    assert partitions_of([named(), LedgerEntry(named().key, None)], ERASURE.bytes) == {}


def test_a_replica_has_confirmed_if_it_has_carried_out_the_last_search():
    """Protects from calling a replica clean that has confirmed an earlier erasure, or a lower beginning."""
    later = named(searched_to=950, erasures_end=990, log_start_offset=100)
    partition = partition_of(later, named(), clean(1), clean(2, erasures_end=990))
    assert [each.searched_to for each in partition.searches] == [900, 950], "in the order of the log"
    assert partition.not_confirmed == [1, 3]
    assert partition_of(named(log_start_offset=101), clean(1)).not_confirmed == [1, 2, 3]
    lower = named(searched_to=950, log_start_offset=99)
    assert partition_of(named(log_start_offset=101), lower, clean(1)).not_confirmed == [1, 2, 3]
    value = clean(2).value
    assert isinstance(value, CleanReplica)
    below = LedgerEntry(clean(2).key, msgspec.structs.replace(value, offset=99))
    assert partition_of(clean(1), below).not_confirmed == [2, 3], "only the beginning was erased"


def test_an_erasure_without_a_commit_is_not_covered():
    begun = named(searched_to=950, committed_ms=-1, erasures_end=-1)
    sentence = "flights-0: the ledger has no commit of an erasure that was begun."
    for rows, expected in [([begun], [sentence]), ([named(), begun], [sentence]), ([named()], [])]:
        found = partitions_of([*rows, clean(1)], ERASURE.bytes)
        made = make_receipt(LINK, "cluster", str(ERASURE), found, {PLACE: (1,)}, [])
        assert made.not_covered == [*ALWAYS, *expected]
        assert made.tables is msgspec.UNSET


def test_an_unknown_kind_of_selector_makes_no_receipt():
    """Protects a receipt from saying something else than a later version has written."""
    with pytest.raises(ReceiptError, match="unknown kind 9"):
        partition_of(named(kind=9))


def test_an_erasure_may_have_reached_only_a_table():
    files = NamedFiles(count=0, names=[], digest="0" * 64)
    table = TableStatement(
        table="a.b",
        table_uuid="u",
        location="file:///t",
        erasure_id=str(ERASURE),
        fence=1,
        fenced_at=rfc3339(TIME_MS),
        rows=3,
        files_searched=1,
        replaced=files,
        written=files,
        deleted=files,
        snapshots_removed=[],
        snapshots_count=0,
        confirmed_at=rfc3339(TIME_MS),
    )
    made = make_receipt(LINK, "cluster", str(ERASURE), {}, None, [], [table])
    assert (made.partitions, made.tables) == ([], [table])
    assert made.not_covered == [*ALWAYS, *TABLES, *ONLY_TABLES]
    found = partitions_of([named(), clean(1)], ERASURE.bytes)
    made = make_receipt(LINK, "cluster", str(ERASURE), found, {PLACE: (1,)}, [], [table])
    assert made.not_covered == [*ALWAYS, *TABLES]


def test_times_are_texts_that_sort_like_numbers():
    assert rfc3339(1_600_000_000_001) == "2020-09-13T12:26:40.001Z"
    assert rfc3339(-62_000_000_000_000) == "0005-04-19T09:46:40.000Z"
    with pytest.raises(ReceiptError, match="is not a date"):
        rfc3339(1 << 60)


def test_the_largest_receipt_is_written_and_read(monkeypatch):
    """Protects from a receipt that can be signed and not be verified."""
    content = chain(1)[0]
    payload = open_envelope(content).payload
    for size, is_allowed in [(len(content), True), (len(content) - 1, False)]:
        monkeypatch.setattr(envelope, "ENVELOPE_BYTES_MAX", size)
        assert (kinds([content]) == []) == is_allowed
        if is_allowed:
            assert seal(RECEIPT_TYPE, payload, KEY) == content
        else:
            with pytest.raises(ReceiptError, match="are allowed"):
                seal(RECEIPT_TYPE, payload, KEY)


@pytest.mark.parametrize("order", [range(5), range(4, -1, -1)])
def test_a_genuine_chain_passes_in_any_order(order):
    files = chain(5)
    assert kinds([files[each] for each in order]) == []
    assert kinds(files[2:4]) == [], "some receipts of a chain may be verified alone"


def test_a_new_key_is_trusted_through_the_statement_of_the_old_one():
    files = chain(5, rotate_at=3)
    assert kinds(files) == []
    assert kinds(files[3:], KEY.public_key(), NEW.public_key()) == []
    assert kinds(files[:2] + files[3:]) == ["unknown_key", "unknown_key"]


def resign(content: bytes, key: Ed25519PrivateKey = KEY, **changes) -> bytes:
    """Returns a forgery of someone who has the key."""
    signed = open_envelope(content)
    statement = json.loads(signed.payload) | changes
    return seal(signed.payload_type, canonical_json(statement), key)


def test_each_fault_has_a_sentence():
    files = chain(4)
    other = key_id_of(OTHER.public_key())
    table = {
        "f0: it is signed with the key": [resign(files[0], OTHER, key_id=other)],
        "f0: the signature is wrong, so the statement was changed.": [
            files[0].replace(open_sig(files[0]), open_sig(files[1]))
        ],
        "f1: number 1 is the same statement as in f0.": [files[0], files[0]],
        "f1: number 1 is another statement than in f0.": [files[0], resign(files[0], cluster_id="x")],
        "number 2 to 3 is missing between f0 and f1.": [files[0], files[3]],
        "number 2 is missing between f0 and f1.": [files[0], files[2]],
        "f1: number 2 does not follow f0.": [resign(files[0], cluster_id="x"), files[1]],
        "f1: it is issued before f0, which has a lower number.": [
            files[0],
            resign(files[1], issued_at=rfc3339(TIME_MS - 1)),
        ],
        "f0: it is number 1, but names a statement before it.": [resign(files[0], previous="1" * 64)],
        "f0: its payload can't be read: ": [resign(files[0], number=0)],
        "f0: the key ids in the envelope and in the payload differ.": [resign(files[0], key_id=other)],
        "f0: its payload is not in the form": [seal(RECEIPT_TYPE, open_envelope(files[0]).payload + b" ", KEY)],
        "f1: the new key has another id.": [files[0], resign(chain(2, rotate_at=2)[1], new_key="1" * 64)],
        "f0: its payload has an unknown type.": [seal("text/plain", b"{}", KEY)],
        "f0: it is not an envelope of a receipt: ": [b"[]"],
        "f0: its JSON is not in the form": [files[0] + b"\n"],
        "f0: it has 0 signatures instead of one.": [b'{"payload":"","payloadType":"","signatures":[]}\n'],
    }
    for sentence, forged in table.items():
        found = [each.sentence for each in verify(forged).findings]
        assert len(found) == 1, (sentence, found)
        assert found[0].startswith(sentence), found


def test_the_files_beside_a_forged_one_are_verified():
    """Protects from one bad file that hides what is wrong with the others."""
    files = chain(4)
    forged = files[1].replace(open_sig(files[1]), open_sig(files[0]))
    assert kinds([files[0], forged, *files[2:]]) == ["signature", "missing"]
    assert kinds([files[0], files[0], files[2]]) == ["duplicate", "missing"]


def test_two_receipts_may_have_one_time():
    files = chain(1)
    second = resign(chain(2)[1], issued_at=rfc3339(TIME_MS + 1), previous=open_envelope(files[0]).digest)
    assert kinds([*files, second]) == []


def open_sig(content: bytes) -> bytes:
    return json.loads(content)["signatures"][0]["sig"].encode()


def test_a_replaced_key_signs_nothing_more():
    files = chain(3, rotate_at=2)
    later = resign(chain(3)[2], previous=open_envelope(files[1]).digest)
    assert kinds([*files[:2], later]) == ["replaced_key"]


def test_five_hundred_random_forgeries_of_receipts_are_found():
    """Bytes changed, removed, inserted; links dropped, doubled, swapped, of another key, of another payload type."""
    choose = random.Random(40)
    genuine = chain(6, rotate_at=4)
    assert kinds(genuine) == []
    missed = []
    for turn in range(500):
        files = list(genuine)
        place = choose.randrange(len(files))
        content = bytearray(files[place])
        at = choose.randrange(len(content))
        kind = turn % 8
        if kind <= 2:
            content[at] ^= 1 << choose.randrange(8)
        elif kind == 3:
            del content[at : at + choose.randrange(1, 9)]
        elif kind == 4:
            content[at:at] = choose.randbytes(choose.randrange(1, 4))
        elif kind == 5:
            content = bytearray(files[choose.randrange(len(files))] if choose.random() < 0.5 else b"")
            if content == files[place]:
                content = bytearray(b"{}")
        elif kind == 6:
            signed = open_envelope(files[place])
            content = bytearray(seal(signed.payload_type, signed.payload, choose.choice([OTHER, KEY, NEW])))
            if content == files[place]:
                content = bytearray(seal("text/plain", signed.payload, KEY))
        else:
            middle = choose.randrange(1, len(files) - 1)
            del files[middle]
            content = None
        if content is not None:
            files[place] = bytes(content)
        choose.shuffle(files)
        if not kinds(files):
            missed.append(turn)
    assert missed == []
