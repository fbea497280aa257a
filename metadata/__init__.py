"""What the cluster agrees on: the store, the image of it that a broker acts on, and the broker's session with it."""
