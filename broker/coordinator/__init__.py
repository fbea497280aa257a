"""Coordinators: what groups of consumers and transactions agree on, kept in internal topics of this broker.

Guards: all that is answered can be read back from the topic by the next coordinator; decisions are plain functions over
values, `runtime` appends what they decide. Rooms, from above: `transactions`, `groups`, `consumer`, `classic`,
`runtime`. Begin with `runtime`, then with
`groups` or `transactions`.
"""
