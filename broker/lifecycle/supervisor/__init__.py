"""Several brokers on one machine, each in a process of its own, and the process that starts them, serves their metadata and stops them.

Guards: the death of a broker takes nothing from the others; no broker outlives its supervisor; nothing is decided on a metadata store
while a broker of an earlier supervisor may act. Imports: the configuration and the metadata; `child` alone imports what makes a broker.
Begin with `supervisor`. `shares` decides what each broker has of one configuration, `restarts` when one is started again, `member` is one
broker as the supervisor has it, `line` is between the two processes.
"""
