"""The states of share partitions (KIP-932), which leaders of partitions persist at a share coordinator.

Guards: writes of a leader are fenced by the epochs of the state and of the leadership; a state that was answered as
persisted can't be lost. Sees `runtime`. Share groups, their members and assignments are in `modern`. Begin with
`share_state`, then `share_states`.
"""
