"""Measures a model on this device, and predicts which method pays on which network. The command is pufferfish-advise."""
