"""Avro, as far as a broker needs it: schemas, which of them can read which, and the binary form of values.

Purpose:   it is ours and not a library's: Apache's broker defines what is accepted, which no package for Python
           follows in every corner, and a broker must not need a compiled package for one small format.
Read next: schema.py (the parts), parser.py, resolution.py, binary.py
"""
