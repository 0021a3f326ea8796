"""Logs in systems that replicate already."""
