"""A log in a system that replicates already: an object store, a database, a directory.

The only thing that is asked of such a system is a create that one of several rivals wins. `store` is the interface,
`stores` has the implementations. The algorithms are steps (generators), independent of threads and event loops;
`driver` carries them out.
"""

from journal.logstore.driver import drive, run
from journal.logstore.store import Created, LogStore

__all__ = ["Created", "LogStore", "drive", "run"]
