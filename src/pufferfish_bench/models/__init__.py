"""The networks of the paper, as plain nn.Modules."""
