# Types of the extension module; its sources are the C files beside this one.
from collections.abc import Callable, Sequence
from typing import TypeVar

_Packet = TypeVar("_Packet")
_Record = TypeVar("_Record")

CRC32C: str
INTERFACE: int
SOURCES: str

def crc32c(data: bytes | bytearray | memoryview, value: int = 0, use_instruction: bool = True, /) -> int: ...
def decode_records(
    body: bytes,
    count: int,
    columns: int,
    base_offset: int,
    lsn: int,
    append_time_us: int,
    min_timestamp_us: int,
    max_timestamp_us: int,
    record: Callable[..., _Record],
    /,
) -> list[_Record] | None: ...
def encode_binary(items: Sequence[bytes], /) -> bytes | None: ...
def size_of_items(items: Sequence[bytes], /) -> int | None: ...
def read_packets(
    data: bytes,
    at: int,
    limit: int,
    has_properties: bool,
    publish: Callable[..., _Packet],
    puback: Callable[[int], _Packet],
    properties: object,
    packets: list[_Packet],
    /,
) -> int: ...
def publish_template(
    first: int, topic: str, payload: bytes, has_properties: bool, expiry_interval_s: int | None, rest: bytes, /
) -> PublishTemplate: ...

class PublishTemplate:
    @property
    def payload(self) -> bytes: ...
    @property
    def qos(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    def packet(
        self,
        packet_id: int,
        /,
        *,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        topic_alias: int | None = None,
        knows_alias: bool = False,
    ) -> bytes: ...

class DirectWriter:
    def __init__(self, work: int, results: int, /) -> None: ...
    def write(self, descriptor: int, buffers: list[bytes | bytearray | memoryview], position: int, /) -> bool: ...
    def wait(self) -> None: ...
    def outcome(self) -> tuple[bool, int, float] | None: ...

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
