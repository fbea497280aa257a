"""The ports to the outside world, each with a real and a simulated form.

Time, randomness, files, durability, threads and sockets are reached only through these modules. So a whole broker runs,
unchanged, on virtual time and a simulated disk. This package knows nothing of Kafka.
"""
