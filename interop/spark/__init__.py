"""Spark with `format("magnetar")`: results beside the official client, jobs that are killed, and Kafka as the peer."""
