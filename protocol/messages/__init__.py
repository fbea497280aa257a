"""One module per API: its request and response, declared once for all versions (`lowtide.protocol.schema`).

Fields, types and versions are those of Kafka's message of the same name, unless a module says otherwise.
"""
