"""What the bytes of an entry mean: the only place in the core of topics and brokers that knows it.

* `head.py` has EntryHead: what an entry's header contains, such as its number of messages; and EntryStamp, which
  writes the broker's header with the index and the time.
* `traits.py` has what delivery must know of an entry, found mostly without parsing, and its ordering key.
* `messages.py` has the single messages of an entry: keys, payloads, what compaction leaves of a batch, and
  the stored form of a compacted ledger's entries.

Entries are stored in the form in which they came. Today all come from Pulsar's protocol; another form would be
recognised here, without a change of the callers. `tools/import_rules.py` checks that they do not bypass this folder.
"""
