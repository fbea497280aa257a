"""Classic groups, whose members assign the partitions themselves (JoinGroup, SyncGroup, Heartbeat, LeaveGroup).

Guards: one generation at a time; an assignment is returned when its record is committed. Decisions only: values in,
effects out. Sees `runtime` (effects, timers) and the settings of groups. Begin with `classic_group` and its states;
then `joining` and `rebalancing`.
"""
