"""What every other package may import: InputError, ranges of settings, printable text, the console. Needs no torch."""
