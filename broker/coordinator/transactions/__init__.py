"""Transactions: their states, their ends, markers to all partitions, and whether a producer may write in one.

Guards: a transaction ends once, committed or aborted, and a fenced producer writes no more. Sees `groups` (offsets that
are committed in a transaction), `runtime` and `partitions`; it asks other brokers by `network`. Begin with
`transaction`, its states, then `transaction_shard` and `transaction_coordinator`.
"""
