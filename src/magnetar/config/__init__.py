"""Configuration: one frozen dataclass per subsystem, gathered in `Config`.

A key is declared once, with `knob` (knobs.py): default, bounds, help text, and the name the same knob has in
BookKeeper, Pulsar or Kafka. Everything else follows from the declaration: loading and checking (load.py),
`magnetar config show`, and docs/configuration.md.

Invariant: a `Config` that exists is valid. Values and relations are checked when a section is made. Nothing here reads
           files or the environment; the caller passes in what it has read.
Read next: root.py (the sections), load.py (where values come from)
"""
