"""A broker and what it consists of."""
