"""One Produce request from its rows to what it has appended, at once or more slowly.

Guards: a row is answered once, and the batches of a partition are appended in the order of the request. The handler is
its only user. Begin with `produce_attempt`.
"""
