"""The location index: where each entry is, on a store of sorted keys."""
