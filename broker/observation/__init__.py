"""What can be seen of a broker beyond Kafka's protocol: segments, history, disks, the loop's health.

Guards: observing costs the path of a request a few integers, and memory within bounds. Rows are built in slices, when they are asked for.
It decides nothing and changes nothing. Begin with `described_deletes`, then `history`.
The handlers of requests that only Lowtide has answer from here.
"""
