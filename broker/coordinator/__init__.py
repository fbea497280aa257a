"""Coordinators of groups, transactions and share states, which keep their state in internal topics of this broker.

Guards: every answer can be read back from the topic by the next coordinator. Decisions are plain functions over values;
`runtime` appends the records they ask for. Rooms, from above: `transactions`, `groups`, `share_state`, `modern`,
`classic`, `runtime`. Begin with `runtime`, then with `groups` or `transactions`.
"""
