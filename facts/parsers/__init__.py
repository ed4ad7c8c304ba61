"""Parsers, one module for each kind of output; none of them raises on what a node prints."""
