"""Real brokers for the tests of users, and a pytest plugin.

Guards: each cluster has its own ports, log directories, and process or thread, and leaves nothing behind. Sees all
rooms of a broker; in every wheel. Begin with `cluster`, then `brokers` and its two hosts (`brokers_process`,
`brokers_thread`), then `plugin`.
"""
