"""Several brokers on one machine, each in its own process, and the supervisor process that runs them.

Guards: the death of a broker does not affect the others; no broker outlives its supervisor; no metadata store is opened
while a broker of an earlier supervisor may act. Imports the configuration and the metadata; only `child` imports the
broker. Begin with `supervisor`. `shares` splits one configuration, `member` is a broker in the supervisor's process,
`child` is the supervisor in the broker's process, and `line` is their protocol.
"""
