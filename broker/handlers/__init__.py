"""One module for each API: from its request to its answer. `handler(broker)` gives what the dispatcher registers."""
