"""The journal: the bookie's write-ahead log, its files, its queue, its mark and its replay."""
