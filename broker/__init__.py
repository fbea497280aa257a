"""The broker: sockets, requests, waiting, configuration, and what holds them together.

Guards: decisions are made below (`storage`, `replication`, the coordinators' pure modules); here they are executed, in
one event loop, and answered. Each folder is a room that says what it sees; `.importlinter` holds them to it, from
`lifecycle` above to `config` below. What stands beside the rooms belongs to all: `pending`, `turns`, `slices`,
`request_context`, `context`, `authorizer`. Begin with `network` for the way of a request, with `lifecycle` for that of
a broker.
"""
