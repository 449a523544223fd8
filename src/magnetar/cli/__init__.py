"""The command line: where processes are put together from their parts, and where people and scripts come in.

Output goes to stdout, as a table for people or, with `--json`, for programs; everything else goes to stderr.
The exit codes are 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
Read next: main.py (the commands), options.py (options they share), output.py (how they print)
"""
