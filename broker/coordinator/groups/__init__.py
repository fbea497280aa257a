"""All groups of a shard with the offsets that they commit, and the coordinator that handlers use.

Guards: an offset is answered once it is committed, and removed when its retention is over. Sees `classic`, `modern`,
`share_state` and `runtime`. Begin with `group_coordinator`, then `group_shard`, which asks the service of each group's
type; `committed_offsets` has what groups have consumed.
"""
