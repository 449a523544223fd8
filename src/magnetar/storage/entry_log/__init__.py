"""Entry logs: files of blocks that hold flushed entries, and how their room comes back."""
