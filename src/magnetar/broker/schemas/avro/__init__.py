"""Avro, as far as a broker needs it: schemas, which of them can read which, and the binary form of values.

    schema.py       the parts of a schema
    parser.py       from JSON text to them
    equality.py     whether two mean the same
    resolution.py   whether one can read what the other wrote
    encoder.py      values in the binary form, for the events of `__change_events`
    decoder.py      and back

Ours and not a library's: what counts is what Apache's broker accepts, which no package for Python follows in every
corner, and a broker must not need a compiled package for one small format.
"""
