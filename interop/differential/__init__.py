"""Random programs of client and admin calls, run on Apache Pulsar and on magnetar side by side. See docs/interop.md."""
