"""The client for whatever speaks Kafka's protocol, for people and programs that administer a cluster: `from lowtide import AdminClient`.

What is here so far:

    settings     `ClientSettings.of({"bootstrap.servers": "localhost:9092"})`, `ClientSettings.read("client.properties")`
"""
