"""Settings of the Python interpreter for the process of a command."""

from __future__ import annotations

import gc
from typing import Final

_YOUNG_OBJECTS: Final = 50_000


def prepare_interpreter() -> None:
    """Collect cycles of objects less often, from the start of a process on.

    Imports create some hundred thousand objects that stay. By default Python looks through the young ones whenever
    there are 700 more, which took a tenth of the time to the first request of a server.
    """
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
