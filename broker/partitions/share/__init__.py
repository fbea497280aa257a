"""Share partitions: what the leader of a partition keeps for each share group that consumes it (KIP-932).

Guards: a record is acquired by one member at a time, and is delivered until it is acknowledged or its deliveries are spent. Imports
nothing of the broker. Begin with `share_partition`, which decides; nothing serves it yet.
"""
