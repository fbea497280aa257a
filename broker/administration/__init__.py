"""Changes what clients may change of the cluster: topics, configurations, leaders, replicas, tokens and access rules.

Guards: the controller decides, one write to the metadata store carries the decision, and the answer waits until
this broker's image shows it. Sees `partitions` (to wait until a change is in force), `network` (to forward) and
`config`, but not groups. Begin with `topic_administrator`. `committing` leads from a decision to a visible change,
`forwarding` asks the controller.
"""
