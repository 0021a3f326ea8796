"""The answer to a query, and its output as a table, JSON or CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from command_line.output import write_lines, write_table

if TYPE_CHECKING:
    import pyarrow as pa

_CHUNK_ROWS: Final = 1000


@attrs.frozen
class Answer:
    """Rows that a query gave.

    Attributes:
        table: The rows; names of columns may repeat.
        is_cut: Whether there are more rows.
        json_columns: Numbers of the columns whose texts are JSON.
    """

    table: pa.Table
    is_cut: bool = False
    json_columns: frozenset[int] = frozenset()

    def write_table(self) -> None:
        """Write a table, with numbers aligned to the right."""
        import pyarrow as pa

        from spark_export.cli.cells import table_cell

        schema = self.table.schema
        numeric = [
            field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        ]
        rows = ([table_cell(value) for value in row] for row in self._rows())
        write_table(self.table.column_names, rows, numeric=numeric)

    def write_json(self) -> None:
        """Write one JSON object per row; JSON of a column is part of it."""
        from spark_export.cli.cells import json_lines

        write_lines(json_lines(self.table.column_names, map(self._with_json, self._rows())))

    def write_csv(self) -> None:
        """Write CSV with a line of names."""
        import csv
        import io

        from spark_export.cli.cells import csv_field

        with io.StringIO(newline="") as text:
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(self.table.column_names)
            writer.writerows([csv_field(value) for value in row] for row in self._rows())
            # Not line by line: a field may contain line breaks.
            write_lines([text.getvalue().removesuffix("\n").encode("utf-8", "surrogateescape")])

    def _rows(self) -> Iterator[Sequence[object]]:
        from spark_export.cli.arrow_values import column_values

        for batch in self.table.to_batches(max_chunksize=_CHUNK_ROWS):
            yield from zip(*map(column_values, batch.columns), strict=True)

    def _with_json(self, row: Sequence[object]) -> Sequence[object]:
        from msgspec import Raw

        def shown(number: int, value: Any) -> object:
            return Raw(value.encode()) if number in self.json_columns and value is not None else value

        return [shown(number, value) for number, value in enumerate(row)] if self.json_columns else row
