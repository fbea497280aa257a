"""Groups whose partitions the broker assigns (KIP-848), and the change of a group from one protocol to the other.

Guards: no partition has two owners in one epoch. Decisions only: values in, effects out. Sees `classic` (members of the
old protocol may be in such a group) and `runtime`. Begin with `consumer_group` and `consumer_heartbeats`. `migration`
is the change of protocol.
"""
