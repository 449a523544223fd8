"""The Pulsar front end: connections of clients, one module per family of commands, and answers in Pulsar's terms.

Order:     A request passes through connection.py (bytes) → dispatcher.py (which command) → connect.py, lookup.py,
           topic_lists.py, producer.py, send.py, subscribe.py, deliveries.py, positions.py, schemas.py, transactions.py
           (its meaning) → the broker's topics. session.py has a connection's producers and consumers. An answer passes
           through consumer.py (deliveries), session.py (receipts and answers), errors.py (the protocol's names of our
           errors) → connection.py (bytes).
Read next: docs/broker.md
"""
