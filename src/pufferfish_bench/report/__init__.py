"""Rendering: sheets, charts, the page and tables for the terminal, all made from records."""
