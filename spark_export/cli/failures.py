"""Error messages in one line: the meaning of Spark's errors without stack traces. Pure, from text to text.

Spark wraps an error several times on its way, and Python's errors arrive only as text. So the innermost error is
searched for in the text, and the place in the query, if it is named.
"""

from __future__ import annotations

import re
from typing import Final

from spark_export.errors import SourceError, without_secrets
from spark_export.jvm import JavaNotFoundError
from spark_export.session import SparkStartError

_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] ")
_SQL_STATE = re.compile(r"\.?\s*SQLSTATE: [0-9A-Z]{5}.*", re.DOTALL)
# The first two count characters from 0, the third from 1.
_PLACE_FROM_0 = re.compile(r"SQLSTATE: \w{5}(?:; line (\d+) pos (\d+)| \(line (\d+), pos (\d+)\))")
_PLACE_FROM_1 = re.compile(r"== SQL \(line (\d+), position (\d+)\) ==")
_PYTHON_ERROR = re.compile(r"^(?:[A-Za-z_]\w*\.)*([A-Z]\w*(?:Error|Exception)): (.+)$", re.MULTILINE)
_JAVA_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)
_JAVA_ERROR = re.compile(r"^: (?:[\w$]+\.)*([\w$]+)(?:: (.*))?$", re.MULTILINE)

_WAYS_OUT: Final = (
    ("spark.driver.maxResultSize", "limit the result with --limit, or write it to files with `journal-spark export`"),
    ("OutOfMemoryError", "give Java more with --memory"),
)
# Errors whose text is complete; for others the class is added.
_COMPLETE_ERRORS: Final = ("OptionError", "DataLossError", "UnreadableError", "CorruptionError", "InvalidNameError")


def explain(error: BaseException) -> str | None:
    """One line about an error of Spark or of something that it uses; None for an error with a clear message.

    It has no passwords of URLs, which drivers of databases repeat.
    """
    told = _explained(error)
    return None if told is None else without_secrets(told)


def _explained(error: BaseException) -> str | None:
    if isinstance(error, SourceError | JavaNotFoundError | SparkStartError):
        return _flat(str(error))
    packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if "pyspark" in packages or type(error).__name__ == "Py4JJavaError":
        return summarize(str(error))
    if "py4j" in packages:
        return "Spark's Java process is gone; if it ran out of memory, give it more with --memory"
    return None


def summarize(text: str) -> str:
    """The meaning of the text of one of Spark's errors, in one line.

    Args:
        text: The whole text, with stack traces, plans and so on.
    """
    summary = _innermost(text)
    found = _PLACE_FROM_0.search(text)
    if found:
        line, position = (int(group) for group in found.groups() if group is not None)
        summary = f"line {line}, column {position + 1}: {summary}"
    elif found := _PLACE_FROM_1.search(text):
        summary = f"line {found[1]}, column {found[2]}: {summary}"
    for sign, way_out in _WAYS_OUT:
        if sign in text:
            summary = f"{summary}; {way_out}"
    return summary


def _innermost(text: str) -> str:
    if "Traceback (most recent call last)" in text and (python := _PYTHON_ERROR.findall(text)):
        name, message = python[-1]
        return _flat(message if name in _COMPLETE_ERRORS else f"{name}: {message}")
    java = _JAVA_CAUSE.findall(text) or _JAVA_ERROR.findall(text)
    message = java[-1][1] or java[-1][0] if java else text.strip()
    # The lines after the first one have advice about catalogues, the query again, or its plan.
    return _flat(_SQL_STATE.sub("", _CONDITION.sub("", message.partition("\n")[0]))) or "Spark failed without a message"


def _flat(text: str) -> str:
    return " ".join(text.split())
