"""What a PUBLISH goes through until it is acknowledged."""
