"""A broker from start to stop: the order in which its parts are built, its periodic work, and its log lines.

Guards: no request is served before the logs are loaded and the broker is registered; acknowledged records are synced
before it stops. Imports every other room, and no room imports it. Begin with `broker`. `running` is the process around
it, `ports` its outside world.
"""
