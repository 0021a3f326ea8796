"""Tests of what the commands share."""
