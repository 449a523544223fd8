"""What the bytes of an entry mean: the only place in the core of topics and brokers that knows it.

* `head.py` has EntryHead: what an entry's header contains, such as its number of messages.
* `traits.py` has what delivery must know of an entry, found mostly without parsing, and its ordering key.
* `stamping.py` writes the broker's header, which carries the index and the time.
* `messages.py` has the single messages of an entry: keys, payloads, and what compaction leaves of a batch.
* `compacted.py` has the stored form of a compacted ledger's entries.

Entries are stored in the form in which they came. Today all come from Pulsar's protocol; another form would be
recognised here, without a change of the callers. `tools/import_rules.py` checks that they do not bypass this folder.
"""
