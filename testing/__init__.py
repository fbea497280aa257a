"""What users get for their tests: a cluster of real brokers beside the test, and a pytest plugin.

Guards: each cluster has ports, log directories and a process or a thread of its own, and leaves nothing behind. Sees
all that a broker is made of; in every wheel. Begin with `cluster`, then `brokers` and who runs them (`brokers_process`,
`brokers_thread`), then `plugin`.
"""
