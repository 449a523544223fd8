"""Commands of a storage node: running it, and looking into or mending a stopped one."""
