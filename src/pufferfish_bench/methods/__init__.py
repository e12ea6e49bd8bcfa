"""One file per method: its plan of phases and its hooks."""
