"""Counts and sizes in messages for people."""

from __future__ import annotations


def plural(count: int, singular: str, plural_form: str = "") -> str:
    """The noun that goes with a count: `record` or `records`; `plural_form` is for nouns that need more than an s."""
    return singular if count == 1 else plural_form or f"{singular}s"


def counted(count: int, singular: str, plural_form: str = "") -> str:
    """A count with its noun: `1 record`, `2,000 records`; see `plural`."""
    return f"{count:,} {plural(count, singular, plural_form)}"


def format_size(size_bytes: int) -> str:
    """A size in powers of 1024 with three significant digits: `1.21 MiB`."""
    if size_bytes < 1024:
        return f"{size_bytes} B"
    size = float(size_bytes)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        size /= 1024
        if size < 999.5 or unit == "TiB":
            break
    digits = max(0, 2 - (size >= 9.995) - (size >= 99.95))
    return f"{size:.{digits}f} {unit}"
