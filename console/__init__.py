"""The console: a site that shows a cluster to a person, over the client `lowtide.admin` alone.

Guards: nothing is changed by a GET, by another site's page or without `write`; a visitor sees and does what the cluster
lets the user do as whom the visitor logged in; nothing that comes from a cluster is markup; every wait, list and read
is bounded. Sees `admin`,
`protocol` and `runtime`. Begin with `site`, then `views` and `sessions`.
"""
