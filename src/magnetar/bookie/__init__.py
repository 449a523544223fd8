"""The storage node: who it is, what it answers, how it starts and ends.

Identity:  directories.py (locked, small durable files) → identity.py (port, id, cookie; cookie_check.py decides)
Known as:  registration.py (the ephemeral node), read_only.py (why it takes no entries), disk_watch.py (full disks)
Requests:  connection.py, and what it hands requests to
Read next: docs/bookie.md
"""
