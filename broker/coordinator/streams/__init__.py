"""Streams groups (KIP-1071): the broker assigns the tasks of Kafka Streams applications.

Guards: a task has one active owner per epoch, and one copy per process; only records change a group. Decisions only:
values in, effects out. Sees `modern` (times, refusals, topics), `classic` and `runtime`. Begin with `streams_group` and
`streams_groups`, then `streams_heartbeats`; `topology` and `sticky_assignor` decide what is assigned.
"""
