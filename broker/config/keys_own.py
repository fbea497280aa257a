"""A broker's keys that Apache Kafka does not have, ordered by subject."""

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
              "The maximum number of rows in all arrays of a request (topics, partitions, groups). A larger request closes its connection."),
    ConfigKey("lowtide.answers.unread.max.bytes", _INT, "268435456", at_least(1 << 20),
              "The maximum number of bytes of responses that clients have not read yet, over all connections. "
              "Above it, the broker closes the connections whose clients have not read for longest."),
    ConfigKey("lowtide.request.decompressed.max.bytes", _INT, "134217728", at_least(1 << 20),
              "The maximum total size of the decompressed batches of a Produce request."),

    ConfigKey("lowtide.advertise.local.address", Type.BOOLEAN, "false", None,
              "Whether the broker advertises the address and port that the client connected to, if "
              "advertised.listeners is not set. Use it for a single broker whose address is not known in advance, "
              "such as one in a container."),
    ConfigKey("lowtide.log.level", Type.STRING, "INFO", OneOf(tuple(LEVELS)),
              "The log level at startup; the option --log-level does the same. The level of each package can be "
              "changed at runtime like that of a Kafka logger (KIP-412)."),

    ConfigKey("lowtide.login.timeout.ms", _INT, "30000", at_least(1_000),
              "The time within which a connection must complete its TLS handshake and login, where its listener requires them."),

    ConfigKey("lowtide.tls.reload.interval.ms", _INT, "10000", at_least(100),
              "The interval at which key stores and trust stores are read again. Renewed ones apply to new connections."),

    ConfigKey("http.listeners", Type.LIST, None, Matching(HTTP_LISTENER_PATTERN, "a list of http://host:port or https://host:port, where an empty host is every interface"),
              "The addresses that serve metrics, health and the console, as http://host:port or https://host:port; "
              "none if empty. If not set, lowtide serve listens on http://127.0.0.1:9644 if that port is free. "
              "Visitors must log in, except for health requests from this machine."),
    ConfigKey("http.trust.local", Type.BOOLEAN, "false", None,
              "Whether requests from this machine need no login for metrics and the console. Do not set it if "
              "other users of this machine must not see them, or if a proxy on this machine forwards requests: "
              "these can look like local requests."),
    ConfigKey("http.trusted.proxies", Type.LIST, "", None,
              "The addresses and networks of proxies in front of http.listeners, such as 10.0.0.7,192.168.0.0/16. "
              "The broker takes the client's address from their X-Forwarded-For header, for limits and the audit "
              "log. A forwarded request is never a local request."),

    ConfigKey("console.write", Type.BOOLEAN, "false", None,
              "Whether the console at http.listeners can make changes that the visitor's ACLs allow: delete "
              "records, and set and delete offsets of groups. Otherwise it is read-only."),
    ConfigKey("http.ready.requires.in.sync", Type.BOOLEAN, "false", None,
              "Whether /health/ready waits until all replicas of the partitions that this broker leads or follows are in sync, as a rolling restart requires."),

    ConfigKey("lowtide.log.delete.erase", Type.BOOLEAN, "false", None, "The default of lowtide.delete.erase: whether deleted records are erased from disk."),
    ConfigKey("lowtide.log.erasure.key.filter", Type.STRING, "search", OneOf(("none", "search")), "The default of lowtide.erasure.key.filter: whether searches build filters of keys."),
    ConfigKey("lowtide.erasure.io.max.bytes.per.second", Type.DOUBLE, "268435456", at_least(0),
              "The maximum rate at which a broker reads logs to search them for records, and at which it then rewrites them; 0 means no limit."),
    ConfigKey("lowtide.erasure.standing.interval.ms", Type.LONG, "60000", at_least(1_000),
              "How often a broker searches what was written to the topics of standing erasures."),
    ConfigKey("lowtide.log.retention.commitoffset.groups", Type.LIST, "", DELETING_GROUPS,
              "The default of lowtide.retention.commitoffset.groups: the groups whose commits delete consumed records."),
    ConfigKey("lowtide.log.free.deleted", Type.BOOLEAN, "true", None,
              "Whether deleted records free their disk space at once: files below the log start offset and of "
              "deleted topics are emptied, and a hole is punched into the file that contains the log start offset. "
              "Otherwise whole segments free their space after file.delete.delay.ms."),

    # Several processes on one machine.
    ConfigKey("lowtide.leader.balance.enable", Type.BOOLEAN, "true", None,
              "Whether leadership moves from an overloaded process to another process of the same machine "
              "(--processes) that has an in-sync replica and spare capacity."),
    ConfigKey("lowtide.leader.balance.busy.percent", _INT, "70", Range(10, 100),
              "The share of time that the event loop of a process is busy above which the process is overloaded."),
    ConfigKey("lowtide.leader.balance.moves.per.minute", _INT, "6", Range(1, 1000),
              "The maximum number of partitions whose leadership moves between the processes of a machine in a minute."),

    # The audit log.
    ConfigKey("lowtide.audit.log", Type.STRING, "off", OneOf(("off", "log", "file")),
              "Where the audit log is written: nowhere, to the broker's log, or to its own file. If it is off, "
              "denied operations are still written to the broker's log."),
    ConfigKey("lowtide.audit.events", Type.LIST, "logins-refused,denied,changes,deletes", _AUDIT_EVENTS, "The events that are written to the audit log."),
    ConfigKey("lowtide.audit.file", Type.STRING, None, None,
              "The file of the audit log. A relative path starts at the first log directory. Rotated files have a number as suffix."),
    ConfigKey("lowtide.audit.file.max.bytes", Type.LONG, "104857600", at_least(4096), "The size at which the audit log is rotated."),
    ConfigKey("lowtide.audit.files.max", _INT, "10", at_least(2), "The maximum number of audit log files, including the current one. The oldest is removed."),

    ConfigKey("lowtide.sasl.oauthbearer.allowed.urls", Type.LIST, "", None,
              "The URLs that OAUTHBEARER settings may use, written exactly as in these settings. In Kafka this is "
              "the system property org.apache.kafka.sasl.oauthbearer.allowed.urls."),

    ConfigKey("lowtide.metrics.partitions", Type.BOOLEAN, "true", None,
              "Whether /metrics includes series for each partition. Otherwise it has only those of topics, groups and the broker."),

    # What clients may create.
    ConfigKey("lowtide.partitions.max", _INT, "100000", at_least(1),
              "The maximum number of partitions on a broker. Requests for more fail with POLICY_VIOLATION."),
    ConfigKey("lowtide.partitions.created.per.second", _INT, "1000", at_least(1),
              "The rate at which clients can create partitions; bursts of twenty times as many are allowed."),
    ConfigKey("lowtide.auto.created.topics.per.second", _INT, "50", at_least(1),
              "The rate at which one connection can create topics automatically; bursts of twenty times as many are allowed."),
    ConfigKey("lowtide.groups.max", _INT, "100000", at_least(1),
              "The maximum number of groups that a broker coordinates. A group ID counts once for every 256 characters."),
    ConfigKey("lowtide.groups.created.per.second", _INT, "1000", at_least(1),
              "The rate at which groups can be created; bursts of twenty times as many are allowed."),
    ConfigKey("lowtide.offsets.max", _INT, "5000000", at_least(1), "The maximum number of committed offsets that a broker keeps in memory."),
    ConfigKey("lowtide.offsets.metadata.bytes.max", _INT, "67108864", at_least(0),
              "The maximum total size of the metadata of all committed offsets, in characters."),
    ConfigKey("lowtide.transactional.ids.max", _INT, "100000", at_least(1),
              "The maximum number of transactional IDs that a broker coordinates. Requests for more fail with POLICY_VIOLATION. "
              "An ID counts once for every 256 characters."),
)
# fmt: on
