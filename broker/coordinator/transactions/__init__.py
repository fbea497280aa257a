"""Transactions: their states, their ends, markers to all partitions, and whether a producer may write in one.

Guards: a transaction ends once, committed or aborted; a fenced producer writes nothing more. Sees `groups` (offsets
committed in a transaction), `runtime` and `partitions`; reaches other brokers by `network`. Begin with `transaction`
and its states, then `transaction_shard` and `transaction_coordinator`.
"""
