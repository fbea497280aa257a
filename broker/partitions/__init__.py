"""The replicas that this broker hosts: appended to, read, followed, deleted from; and requests that wait for that.

Guards: decisions are those of `lowtide.replication`, carried out here in one step; a request that waits is answered
once, by the event that it waits for or by its deadline. Sees `network` and `config`; no group and no handler. Begin
with `replica_manager` (what requests do), then `assigned_partitions` (what the metadata change). `leader_partitions`
and `replica_fetcher` are the two sides of replication.
"""
