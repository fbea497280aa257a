"""Writes the audit log: refused logins, denied operations, changes and deletes, as JSON lines.

They go to a separate file or to the broker's log.

Guards: no client can fill the log, it holds no secret, and neither a slow nor a full disk delays or stops the broker.
An event is written where it happens; `guards/audited_requests` reads the requests that change something. Begin with
`audit_log`, then `audit_file`.
"""
