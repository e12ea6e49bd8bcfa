"""One thin file per command. Errors become one sentence and exit code 2 (messages.py)."""
