"""Produce: validates and appends batches, and waits for followers.

Guards: a row is answered once, and the batches of a partition are appended in the order of the request. Sees the
replica manager and `replication`; no handler. Begin with `produce_attempt`, then `delayed_produce`. `joint_produce` is
the short form for small batches that are appended together.
"""
