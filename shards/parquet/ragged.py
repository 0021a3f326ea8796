"""Index arithmetic for ranges of different lengths: what numpy needs to treat many small batches at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def starts_of(counts: Ints) -> Ints:
    """Return where each of the ranges begins when ranges of these lengths lie back to back."""
    return np.cumsum(counts) - counts


def ranges(starts: Ints, counts: Ints) -> Ints:
    """Return the numbers from each start on, as many as its count says, one range after the other."""
    return np.repeat(starts - starts_of(counts), counts) + np.arange(counts.sum())


def padded(sizes: Ints) -> Ints:
    """Return the sizes rounded up to multiples of 8."""
    return sizes + 7 & -8
