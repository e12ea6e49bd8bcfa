"""One file a method: its plan and what it does at the moments of a step."""
