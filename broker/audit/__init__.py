"""The audit log: refused logins, denied operations, changes and deletes, as lines of JSON in a file of their own or in the broker's log.

Guards: no client fills it, no secret is in it, and neither a slow disk nor a full one holds up or ends the broker. The part that sees an
event writes it; requests that change something are read by `guards/audited_requests`. Begin with `audit_log`, then `audit_file`.
"""
