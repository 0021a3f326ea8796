"""Traces of messages through servers: where the time goes between sending and delivery, hop by hop.

A tool of commands; servers do not use it, and it changes nothing in them. Messages are marked, and found again in the
packets of the loopback interface.
"""

from journal.trace.capture import CaptureError
from journal.trace.hops import Hop, Path
from journal.trace.load import LoadError, Run
from journal.trace.trace import ACKNOWLEDGED, DELIVERED, SCHEDULED, Options, Trace, check_capture, trace

__all__ = [
    "ACKNOWLEDGED",
    "DELIVERED",
    "SCHEDULED",
    "CaptureError",
    "Hop",
    "LoadError",
    "Options",
    "Path",
    "Run",
    "Trace",
    "check_capture",
    "trace",
]
