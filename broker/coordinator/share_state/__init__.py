"""The state of share partitions (KIP-932), which the leaders of partitions persist at a share coordinator.

Guards: what a leader persists is fenced by the epochs of the state and of the leadership; an answer that it is
persisted can't be lost any more. Sees `runtime`. Share groups themselves, their members and assignments, are in
`consumer`. Begin with `share_state`, then
`share_states`.
"""
