"""Tests of the trace: markers in packets, streams, hops and loads."""
