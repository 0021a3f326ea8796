# Types of the extension module; its sources are the C files beside this one.
from collections.abc import Sequence

CRC32C: str
SOURCES: str

def crc32c(data: bytes | bytearray | memoryview, value: int = 0, use_instruction: bool = True, /) -> int: ...

class AppendLoop:
    position: int
    next_lsn: int
    @property
    def acks(self) -> bytes: ...
    def __init__(
        self,
        epochs: dict[int, int],
        owners: dict[int, int],
        max_frame_bytes: int,
        shard: type,
        segment: type,
        chunks: type,
        producer: type,
        /,
    ) -> None: ...
    def run(
        self,
        view: memoryview,
        end: int,
        handles: Sequence[object],
        sender: int,
        group: object,
        room_bytes: int,
        time_us: int,
        /,
    ) -> None: ...
