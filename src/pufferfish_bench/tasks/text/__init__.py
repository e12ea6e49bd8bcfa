"""Language modelling: WikiText-2 and synthetic text."""
