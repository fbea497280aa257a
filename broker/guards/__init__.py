"""Permissions: a guard for each API that requires some, which runs before the handler if there is an authorizer.

Guards: what a client may not do is refused before the handler sees it, with the error that Kafka answers, row by row.
Sees `coordinator`, `partitions` and `network`; no handler. Begin with `guard`; each handler declares its guard.
"""
