"""DeleteRecords: what a delete is, its two waits, and the deletes that ended last.

Guards: a delete is acknowledged only when the leader's journal and every replica that must have it have it durably
(rules DR1, DR3, DR4), under the leader epoch in which it was accepted (DR6). Sees the replica manager and
`replication`; no handler. Begin with `delayed_delete`.
"""
