"""The bytes of a record batch: header, columns, compression, checksum."""

__all__: list[str] = []
