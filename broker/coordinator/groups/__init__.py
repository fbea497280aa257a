"""All groups of a shard, of both protocols, with the offsets that they commit; and the coordinator that clients ask.

Guards: an offset is answered when it is committed, and removed when its retention is over. Sees `classic`, `consumer`
and `runtime`. Begin with `group_coordinator`, then `group_shard`, which asks the service of each group's type
(`group_services`).
`committed_offsets` is what groups have consumed.
"""
