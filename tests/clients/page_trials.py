"""What each page assumes that its reader has: brokers, topics with records, files, and what stands for addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The beginning of a page, and how it differs here.

    `brokers` are started first: none, one or several. Then the shell runs `before`, in the reader's empty folder. There
    `$DATA` is the folder of the brokers, `$PAGES` that of the pages, and `$PORT`, `$PORT_2` and `$PORT_3` are free
    ports, the first one also in `environment`. Servers of `lowtide` are stopped before commands that begin with one of
    `stopped_for`. The trial needs `programs`.
    `replaced` are pairs of a text in commands and programs, and the text that stands for it here. `typed` has what the
    reader types at commands with these beginnings. The output of commands that begin with one of `unlike` has other
    values each time: only the exit code is checked, which is 0 unless `codes` has another one.
    """

    brokers: int = 1
    config: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    replaced: tuple[tuple[str, str], ...] = ()
    typed: Mapping[str, str] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()
    codes: Mapping[str, int] = field(default_factory=dict)
    stopped_for: tuple[str, ...] = ()
    programs: tuple[str, ...] = ("kcat",)
    slow: bool = True


ERASURE = "6b2d7f0e-7d5c-4b8e-9b43-0c2f5a9a1c11"
PERSON, OTHER = "person-4711", "person-0815"

OFFSETS = '{"partitions": [{"topic": "flights", "partition": 0, "offset": 400}], "version": 1}'
NEWEST = """$(lowtide erasures standing list --output json | sed -n 's/.*"erasure": *"\\([^"]*\\).*/\\1/p' | head -1)"""

LETTERS = (
    "lowtide topics create orders --replicas 3",
    "lowtide topics create payments --replicas 3",
    "lowtide topics create tides --replicas 3",
    (
        f"seq 0 999 | sed 's/^17$/{OTHER}:&/; s/^90[45]$/{OTHER}:&/; s/^[358]$/{PERSON}:&/; s/^[0-9]*$/person-1:&/' | "
        "lowtide records produce orders --separator :"
    ),
    f"seq 0 479 | sed 's/^300$/{PERSON}:&/; s/^[0-9]*$/person-2:&/' | lowtide records produce payments --separator :",
    "seq 6000 | lowtide records produce tides:0",
)
"""Records of two people among others."""

TRIALS: dict[str, Trial] = {
    "README.md": Trial(
        replaced=(("console --write", "console --write --port 0"),),
        slow=False,
    ),
    "docs/quick-start.md": Trial(
        replaced=(
            ("listeners=PLAINTEXT://127.0.0.1:9092", "listeners=PLAINTEXT://127.0.0.1:0"),
            ("/tmp/lowtide-data", "x"),
        ),
        slow=False,
    ),
    "docs/clusters.md": Trial(brokers=3, replaced=(("dev --brokers 3", "dev --brokers 3 --port 0"),)),
    "docs/durability.md": Trial(),
    "docs/retention.md": Trial(
        before=("lowtide topics create tides --partitions 3", "seq 5000 | lowtide records produce tides:0"),
        unlike=("lowtide topics explain", "kcat -Q", "lowtide records delete", "lowtide configs"),
    ),
    "docs/dead-letters.md": Trial(),
    "docs/erasure.md": Trial(
        brokers=3,
        before=LETTERS,
        replaced=((f"standing end {ERASURE}", f"standing end {NEWEST}"),),
    ),
    "docs/proof.md": Trial(
        brokers=3,
        before=(
            *LETTERS,
            f"echo {PERSON} > key.txt",
            f"lowtide records erase orders --keys-from key.txt --erasure-id {ERASURE} --yes 2> erased.txt",
            "sed -n 's/.*--nonce //p' erased.txt > nonce.txt",
        ),
        replaced=(
            ("copies/one,copies/two", "$DATA/broker-1,$DATA/broker-2"),
            ("--nonce - >", "--nonce - < nonce.txt >"),
        ),
        unlike=("lowtide erasures replay", "lowtide erasures verify"),
    ),
    "docs/command-line.md": Trial(
        brokers=4,
        before=(
            f"echo '{OFFSETS}' > offsets.json",
            f"echo '{OFFSETS}' | sed 's/: 400/: 5.5/' > wrong.json",
        ),
        replaced=(("data/flights-0/", "$DATA/broker-1/flights-0/"),),
        unlike=("lowtide dump-log",),
        codes={"lowtide-delete-records --bootstrap-server 127.0.0.1:9092 --offset-json-file wrong.json": 2},
    ),
    "docs/testing.md": Trial(brokers=0),
    "docs/from-testcontainers.md": Trial(brokers=0),
    "docs/operations.md": Trial(
        brokers=3,
        replaced=(
            ("listeners=PLAINTEXT://127.0.0.1:9092", "listeners=PLAINTEXT://127.0.0.1:0"),
            ("/tmp/lowtide-data", "x"),
            ("--log-dir data --dry-run", "--log-dir x --dry-run; printf X > x/lowtide-log-start.journal"),
            ("--log-dir data", "--log-dir x"),
        ),
        unlike=("lowtide configs",),
        stopped_for=(".venv/bin/lowtide repair-log-start",),
    ),
    "docs/processes.md": Trial(
        brokers=4,
        replaced=(
            ("serve --processes 4", "serve --processes 4 --set listeners=PLAINTEXT://127.0.0.1:0 --set log.dirs=x"),
        ),
    ),
    "docs/console.md": Trial(
        replaced=(
            (
                "lowtide console --bootstrap-server 127.0.0.1:9092",
                "lowtide console --port 0 --bootstrap-server localhost:9092",
            ),
            ("broker-1:9092", "127.0.0.1:9092"),
            ("--listen 0.0.0.0:8080", "--listen 127.0.0.1:0"),
        ),
        typed={"lowtide console-users add": "a long password\na long password\n"},
    ),
    "docs/security.md": Trial(
        brokers=0,
        environment={"LOWTIDE_COMMAND_CONFIG": "dev/secure/client/admin.properties"},
        replaced=(("lowtide dev --secure", "lowtide dev --secure --port 0 --data dev"), ("DIR/", "dev/")),
        typed={"lowtide users add": "a long password\n"},
    ),
    "docs/quotas.md": Trial(),
    "docs/observability.md": Trial(config={"http.listeners": "http://127.0.0.1:0"}, before=("echo secret > password",)),
    "docs/backup.md": Trial(
        brokers=0,
        environment={"LOWTIDE_BOOTSTRAP_SERVER": "127.0.0.1:$PORT"},
        before=(
            "lowtide serve --set listeners=PLAINTEXT://127.0.0.1:$PORT --set log.dirs=$PWD/1,$PWD/2",
            "lowtide topics create flights --partitions 3",
        ),
        replaced=(
            ("lowtide restore", "rm $PWD/1/lowtide-metadata.sqlite; lowtide restore"),
            ("/data/", "$PWD/"),
            ("/backup/", ""),
        ),
        stopped_for=("lowtide restore",),
    ),
    "docs/etcd.md": Trial(
        brokers=0,
        environment={"LOWTIDE_BOOTSTRAP_SERVER": "127.0.0.1:$PORT"},
        before=(
            (
                "etcd --data-dir etcd --listen-client-urls http://127.0.0.1:$PORT_2 --advertise-client-urls "
                "http://127.0.0.1:$PORT_2 --listen-peer-urls http://127.0.0.1:$PORT_3 --initial-advertise-peer-urls "
                "http://127.0.0.1:$PORT_3 --initial-cluster default=http://127.0.0.1:$PORT_3"
            ),
        ),
        replaced=(
            ("10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379", "127.0.0.1:$PORT_2"),
            ("node.id=1 …", "node.id=1 --set log.dirs=$PWD/1,$PWD/2 --set listeners=PLAINTEXT://127.0.0.1:$PORT"),
            ("10.0.0.1:2379/…", "127.0.0.1:$PORT_2"),
            ("/data/", "$PWD/"),
            (" broker-2.json broker-3.json", ""),
        ),
        stopped_for=("lowtide metadata export",),
        programs=("etcd",),
    ),
    "docs/log-directories.md": Trial(
        brokers=0,
        environment={"LOWTIDE_BOOTSTRAP_SERVER": "127.0.0.1:$PORT"},
        before=(
            "lowtide serve --set listeners=PLAINTEXT://127.0.0.1:$PORT --set node.id=1 --set log.dirs=$PWD/1,$PWD/2",
            "lowtide topics create flights --partitions 3",
        ),
        replaced=(("/data/", "$PWD/"),),
        unlike=("lowtide log-dirs move",),
        stopped_for=("lowtide metadata",),
    ),
    "docs/logins.md": Trial(
        brokers=0,
        environment={"LOWTIDE_BOOTSTRAP_SERVER": "127.0.0.1:$PORT", "LOWTIDE_COMMAND_CONFIG": "admin.properties"},
        before=(
            "lowtide certificates secure --host localhost --host 127.0.0.1 -b 127.0.0.1:$PORT",
            "cp secure/broker.pem secure/broker-2027.pem",
            "sed -n '/^    listeners=/,/^$/p' \"$PAGES/logins.md\" | sed 's/^    //' > page",
            """sed -i "s|://:9094|://127.0.0.1:$PORT|; s/…/broker/" page""",
            """sed "s|/etc[/]lowtide|$PWD/secure|" page > server.properties""",
            "echo delegation.token.secret.key=secret >> server.properties",
            "echo broker | lowtide users add broker --log-dirs data",
            "lowtide users add admin --log-dirs data --password-file secure/admin.password",
            "lowtide serve --config server.properties --set log.dirs=data",
            *(
                f'sed \'s/username="admin" password="[^"]*/username="{user}" password="a long password/\' '
                f"secure/client/admin.properties > {user}.properties"
                for user in ("alice", "scheduler")
            ),
            "cp secure/client/admin.properties .",
            "lowtide users add scheduler",
        ),
        replaced=(
            ("/var/lib/lowtide", "elsewhere"),
            ("broker:9094", "127.0.0.1:$PORT"),
            ("/etc/lowtide/", "$PWD/secure/"),
            ("2d --command-config alice.properties", "2d --command-config alice.properties > token.txt"),
            ("sC5dD8vWTWyN4T9-6Jb2pQ", """$(sed -n 's/^token *//p' token.txt)"""),
        ),
        typed={"lowtide users add": "a long password\n"},
        unlike=("lowtide tokens",),
    ),
}
