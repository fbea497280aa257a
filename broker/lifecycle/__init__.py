"""A broker from start to stop: what is built in which order, what is done about once a second, and what the log says.

Guards: nothing is served before the logs are loaded and the broker is registered; what was acknowledged is synced
before it stops. Sees every other room, and no room sees it. Begin with `broker`. `running` is the process around it,
`ports` the outside world that it is given.
"""
