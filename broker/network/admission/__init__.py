"""Decides which connections are admitted, and which are served after others.

Guards: the number of connections, in total and by address, and the memory of clients without a login are bounded.
Uses only times and addresses of a connection. Begin with `admission`; `slow_lane` gives turns.
"""
