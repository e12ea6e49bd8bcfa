"""Records in, tables out."""
