"""The front end of Kafka's protocol: listening, connections, requests, and topics.

Read next: front_end.py, session.py; docs/kafka.md
"""
