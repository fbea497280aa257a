"""The outside world behind ports, each with a real and a simulated form.

Time, randomness, files, durability, threads and sockets are reached through these modules and nowhere else; that is
what lets a whole broker run, unchanged, on virtual time and a simulated disk. This package knows nothing of Kafka.
"""
