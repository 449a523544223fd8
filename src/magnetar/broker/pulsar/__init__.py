"""The Pulsar front end: connections of clients, one module per family of commands, and answers in Pulsar's own words.

Way in:    connection.py (bytes) → dispatcher.py (which command) → connect.py, lookup.py, producer.py, send.py, … (what
           it means) → the broker's topics. session.py is what one connection has: its producers and consumers.
Way out:   answers.py (what is sent), errors.py (how our errors are called there), sinks.py (receipts and deliveries).
Read next: docs/broker.md
"""
