"""Which connections may stay, and which wait for others.

Guards: the number of connections, in all and by address, and the memory of clients that aren't logged in, are bounded.
Sees nothing of a connection but its times and addresses. Begin with `admission`; `slow_lane` gives turns.
"""
