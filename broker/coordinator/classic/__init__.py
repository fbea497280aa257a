"""Groups whose members divide the partitions among themselves (JoinGroup, SyncGroup, Heartbeat, LeaveGroup).

Guards: one generation at a time, and an assignment is given out when its records are committed. Decisions only: values
in, effects out. Sees `runtime` (effects, timers) and the settings of groups. Begin with `classic_group`, its states;
then `joining` and `rebalancing`.
"""
