"""Who leads, what is committed, what is deleted: decisions only.

Guards: nothing here waits, reads a clock, touches a file or logs; images, fetches and times come in as values,
decisions go out. Sees the metadata's image and the values of a log. Begin with `partition`, then `leadership` and
`in_sync_replicas` (the leader's side), `follower` (the other one). `controller` decides for the cluster, `purgatory`
which waiting request an event releases.
"""
