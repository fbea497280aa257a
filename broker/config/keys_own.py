"""A broker's keys that Apache Kafka does not have: limits that it has no names for.

A table: its order is by subject.
"""

from __future__ import annotations

from typing import Final

from lowtide.broker.config.key import ConfigKey, Matching, OneOf, Range, Type, at_least
from lowtide.broker.config.keys_topics import DELETING_GROUPS
from lowtide.broker.config.log_levels import LEVELS

_INT: Final = Type.INT
HTTP_LISTENER_PATTERN: Final = r"(http|https)://(\[[0-9A-Fa-f:.%]*\]|[^/:\[\]]*):[0-9]{1,5}"
_AUDIT_EVENTS: Final = OneOf(("logins", "logins-refused", "allowed", "denied", "changes", "deletes"))

# fmt: off
OWN_KEYS: Final[tuple[ConfigKey, ...]] = (
    ConfigKey("lowtide.request.rows.max", _INT, "10000", at_least(1_000),
              "How many rows a request may have, in all its arrays: topics, partitions, groups, ... A larger request closes its connection.", enforced=True),
    ConfigKey("lowtide.answers.unread.max.bytes", _INT, "268435456", at_least(1 << 20),
              "How many bytes of answers that clients don't read may be in memory, of all connections together. Beyond it the connections "
              "of clients that have read nothing for longest are closed.", enforced=True),
    ConfigKey("lowtide.request.decompressed.max.bytes", _INT, "134217728", at_least(1 << 20),
              "How many bytes the compressed batches of one Produce request may decompress to together.", enforced=True),

    ConfigKey("lowtide.advertise.local.address", Type.BOOLEAN, "false", None,
              "Whether clients get, for the broker that they ask, the address and port at which their connection arrived, where advertised.listeners is not "
              "set. For a single broker whose address is not known beforehand, such as one in a container.", enforced=True),
    ConfigKey("lowtide.log.level", Type.STRING, "INFO", OneOf(tuple(LEVELS)),
              "How much the broker's log has at its start; --log-level is the same. While a broker runs, the level of each room of the code is set as that of "
              "Kafka's loggers is (KIP-412).", enforced=True),

    ConfigKey("lowtide.login.timeout.ms", _INT, "30000", at_least(1_000),
              "How long a connection may stay without a login, or a TLS handshake, where its listener wants one.", enforced=True),

    ConfigKey("lowtide.tls.reload.interval.ms", _INT, "10000", at_least(100),
              "How often the files of key stores and trust stores are read again; renewed ones hold for new connections.", enforced=True),

    ConfigKey("http.listeners", Type.LIST, None, Matching(HTTP_LISTENER_PATTERN, "a list of http://host:port or https://host:port, where an empty host is every interface"),
              "Where metrics, health and the console are served, as http://host:port or https://host:port; nowhere when empty. When not set, lowtide serve "
              "listens on http://127.0.0.1:9644 if that port is free. Visitors need a login, but this machine for health.", enforced=True),
    ConfigKey("http.trust.local", Type.BOOLEAN, "false", None,
              "Whether requests of this machine need no login at http.listeners for metrics and the console either. Do not set it where other users of the "
              "machine may not see them, or where a proxy on this machine passes requests on: those may look like requests of the machine.", enforced=True),
    ConfigKey("http.trusted.proxies", Type.LIST, "", None,
              "Addresses and networks of proxies in front of http.listeners, such as 10.0.0.7,192.168.0.0/16. Their header X-Forwarded-For says who sends a request, "
              "for limits and for the audit log. What they pass on is never a request of this machine.", enforced=True),

    ConfigKey("console.write", Type.BOOLEAN, "false", None,
              "Whether the console at http.listeners may change what access rules allow its visitors: delete records, set and delete offsets of groups. "
              "It is read-only otherwise.", enforced=True),
    ConfigKey("http.ready.requires.in.sync", Type.BOOLEAN, "false", None,
              "Whether /health/ready waits until all replicas of the partitions that a broker leads or follows are in sync, as a rolling restart wants it.",
              enforced=True),

    ConfigKey("lowtide.log.delete.erase", Type.BOOLEAN, "false", None,
              "Whether topics erase what is deleted that don't say so themselves with lowtide.delete.erase.", enforced=True),
    ConfigKey("lowtide.log.retention.commitoffset.groups", Type.LIST, "", DELETING_GROUPS,
              "The groups whose commits let consumed records go, of topics that don't say so themselves with lowtide.retention.commitoffset.groups.", enforced=True),
    ConfigKey("lowtide.log.free.deleted", Type.BOOLEAN, "true", None,
              "Whether deleted records give their room on the disk back at once: files below the log start and of deleted topics are emptied, and the one that "
              "holds the log start gets a hole. Without it their room is free when file.delete.delay.ms is over, in whole segments.", enforced=True),

    # Several processes on one machine.
    ConfigKey("lowtide.leader.balance.enable", Type.BOOLEAN, "true", None,
              "Whether the leadership of partitions moves from a process that is full to another one of the same machine (--processes) that has a replica "
              "in sync, and room.", enforced=True),
    ConfigKey("lowtide.leader.balance.busy.percent", _INT, "70", Range(10, 100),
              "How much of the time the event loop of a process runs that is full.", enforced=True),
    ConfigKey("lowtide.leader.balance.moves.per.minute", _INT, "6", Range(1, 1000),
              "How many partitions of a machine get another leader for that in a minute, at most.", enforced=True),

    # The audit log.
    ConfigKey("lowtide.audit.log", Type.STRING, "off", OneOf(("off", "log", "file")),
              "Where the audit log goes: nowhere, into the broker's log, or into a file of its own. Without one, denied operations are lines of the "
              "broker's log.", enforced=True),
    ConfigKey("lowtide.audit.events", Type.LIST, "logins-refused,denied,changes,deletes", _AUDIT_EVENTS,
              "What the audit log has.", enforced=True),
    ConfigKey("lowtide.audit.file", Type.STRING, None, None, "The file of the audit log, in the first log directory unless its path is absolute; rotated ones "
              "have a number behind its name.", enforced=True),
    ConfigKey("lowtide.audit.file.max.bytes", Type.LONG, "104857600", at_least(4096),
              "How large the file of the audit log gets before it is rotated.", enforced=True),
    ConfigKey("lowtide.audit.files.max", _INT, "10", at_least(2), "How many files the audit log has, the current one included; the oldest is removed.",
              enforced=True),

    ConfigKey("lowtide.sasl.oauthbearer.allowed.urls", Type.LIST, "", None,
              "URLs that may be configured for OAUTHBEARER, each as it is configured. Kafka has a system property for it, org.apache.kafka.sasl.oauthbearer.allowed.urls.",
              enforced=True),

    ConfigKey("lowtide.metrics.partitions", Type.BOOLEAN, "true", None,
              "Whether /metrics has series of single partitions. Without them those of topics, groups and the broker remain.", enforced=True),

    # What clients may create.
    ConfigKey("lowtide.partitions.max", _INT, "100000", at_least(1),
              "How many partitions a broker may host; more are refused with POLICY_VIOLATION.", enforced=True),
    ConfigKey("lowtide.partitions.created.per.second", _INT, "1000", at_least(1),
              "How many partitions clients may create in a second, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.auto.created.topics.per.second", _INT, "50", at_least(1),
              "How many topics one connection may have created in a second by asking for them, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.groups.max", _INT, "100000", at_least(1), "How many groups a broker coordinates; others are refused.", enforced=True),
    ConfigKey("lowtide.groups.created.per.second", _INT, "1000", at_least(1),
              "How many groups may begin in a second, and twenty times as many at once.", enforced=True),
    ConfigKey("lowtide.offsets.max", _INT, "5000000", at_least(1), "How many committed offsets a broker keeps in memory; others are refused.",
              enforced=True),
    ConfigKey("lowtide.offsets.metadata.bytes.max", _INT, "67108864", at_least(0),
              "How much metadata all committed offsets may have together, in characters.", enforced=True),
    ConfigKey("lowtide.transactional.ids.max", _INT, "100000", at_least(1),
              "How many transactional ids a broker coordinates; others are refused with POLICY_VIOLATION.", enforced=True),
)
# fmt: on
