"""Single policies of namespaces and topics: each is a row of a table, which makes its routes.

Read next: kinds.py (what may be set), namespace_table.py, topic_table.py
"""
