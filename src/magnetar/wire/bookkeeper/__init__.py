"""The wire protocol between BookKeeper's clients and bookies, in both roles, byte for byte as Apache's.

    frames.py        length prefix and limit, for both versions
    packet.py        the first word of a v2 frame: version, operation, flags
    codes.py         what a bookie answers, as v2 and v3 number it
    messages.py      requests and responses as values, the same for both versions
    requests_v2.py   responses_v2.py   requests_v3.py   responses_v3.py   auth_message.py: values ⇄ bytes
    checks.py        what makes a well-formed request one that cannot be served
    hot_path.py      runs of v2 adds, reads and their answers over one buffer, with no object per entry
    server.py        requests of one connection: which version it speaks, what is refused
    client.py        requests out, responses in
    digests.py       how a writer seals an entry, and how a reader checks it; master keys
    availability.py  which entries of a ledger a bookie holds

What a decoder returns owns its bytes, so a receive buffer may be reused at once; only `hot_path` returns offsets.
Read next: docs/bookkeeper-protocol.md
"""
