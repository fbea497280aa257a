"""What all coordinators share: shards of an internal topic, timers, and answers that wait for a commit.

Guards: a decision is answered when its records are committed; a shard answers only while its broker leads the
partition. Sees `partitions` and `administration` (the internal topics); no group and no transaction. Begin with
`coordinator_runtime`, then `shard` and `effects`.
"""
