"""Several servers that share a store: takeovers, and what they refuse."""
