"""What `journal queue` can do: the table that the `journal` program finds as an entry point."""

from __future__ import annotations

from typing import Final

from command_line.added_commands import AddedCommands

_HERE: Final = "broker_adapter.cache_queue.cli"

# First lines of the functions' docstrings, told without importing them (a test compares the two).
COMMANDS: Final = AddedCommands(
    "Look at cache queues, and pause, drain and empty them.",
    {
        "list": (f"{_HERE}.list:list_command", "List queues with what waits in them, how fast, and who drains them."),
        "show": (f"{_HERE}.show:show_command", "Show one queue: its sink, its bounds, and what became of its records."),
        "pause": (f"{_HERE}.pause:pause_command", "Keep a queue's records from its sink; it goes on filling."),
        "resume": (f"{_HERE}.pause:resume_command", "Let a paused queue drain again."),
        "drain": (
            f"{_HERE}.drain:drain_command",
            "Have a queue's sink tried at once, and wait until what waits now has left the queue.",
        ),
        "purge": (f"{_HERE}.purge:purge_command", "Throw away all that waits in a queue, for ever."),
        "dead-letters": (
            f"{_HERE}.dead_letters:dead_letters_command",
            "List the records that a queue's sink refused; put them back, or throw them away.",
        ),
        "metrics": (
            f"{_HERE}.metrics:metrics_command",
            "Print the metrics of all queues in the format of Prometheus, or serve them.",
        ),
        "delete": (
            f"{_HERE}.delete:delete_command",
            "Remove a queue that nobody drives, with all that waits in it and its dead letters.",
        ),
    },
)
