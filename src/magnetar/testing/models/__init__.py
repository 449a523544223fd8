"""Models: plain versions of rules whose production code is arranged for speed.

A model says what a rule means, for one case at a time and without any cleverness. Production never imports a model: a
test runs both through the same random history and compares them.

    ack_set.py       when an entry has enough acknowledgements; the twin of ledger/writing/pending_adds.py
"""
