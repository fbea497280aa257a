"""Idempotent producers and transactions of one partition: what a log remembers of them, in memory and in files.

Guards: of a producer's batches only the one that follows its last is appended; the last stable offset passes no
transaction that may still be open. The state is a function of the log; snapshots and indexes shorten the replay.
Sees `segments`. Begin with `producer_state`, then `snapshots`.
"""
