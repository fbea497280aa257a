"""Share partitions: what the leader of a partition keeps for each share group that consumes it (KIP-932).

Guards: a record is acquired by one member at a time, and is delivered until it is acknowledged or has used up its
deliveries. `share_partition`, `share_runs` and `share_sessions` decide; `leader_share_partition` stores the decisions,
`share_fetch` reads and waits, `share_partitions` has all share partitions of a broker. Sees nothing of the
coordinators: `StateKeeper` is the port to them. Begin with `share_partition`.
"""
