"""What users get for their tests: a cluster of real brokers in the test process, and a pytest plugin.

Guards: each cluster has ports, log directories and threads of its own, and leaves nothing behind. Sees all that a broker is made of; in
every wheel. Begin with `cluster`, then `plugin`. `etcd` starts an etcd where a test needs one, `free_ports` finds ports for processes.
"""
