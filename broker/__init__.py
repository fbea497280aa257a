"""The broker: sockets, requests, waiting, configuration, and what connects them.

Guards: decisions are made in `storage`, `replication` and the coordinators' pure modules; here they are executed in one
event loop, and answered. Each folder is a room whose imports `.importlinter` restricts, from `lifecycle` at the top to
`config` at the bottom. The modules beside the rooms are shared: `pending`, `turns`, `request_context`, `context`.
Begin with `network` for the path of a request, and with `lifecycle` for that of a broker.
"""
