"""What clients change of the cluster: topics, configurations, leaders and replicas.

Guards: the controller decides, one write to the metadata store carries the decision, and the answer waits until this
broker's image shows it. Sees `partitions` (to wait until a change is in force), `network` (to forward) and `config`; no
group. Begin with `topic_administrator`.
`committing` is the step from a decision to a change that shows, `forwarding` asks the controller.
"""
