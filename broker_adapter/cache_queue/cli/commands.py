"""The subcommands of `journal queue`: the table that the `journal` program finds as an entry point."""

from __future__ import annotations

from typing import Final

from command_line.app import AddedCommands

_HERE: Final = "broker_adapter.cache_queue.cli"

# First lines of the functions' docstrings, here so that listing them imports no command (a test compares the two).
COMMANDS: Final = AddedCommands(
    "Show cache queues; pause, drain and empty them.",
    {
        "list": (f"{_HERE}.show:list_command", "List queues with their records, rates and drivers."),
        "show": (f"{_HERE}.show:show_command", "Show one queue: its sink, its bounds, the outcomes of its records."),
        "pause": (
            f"{_HERE}.queue_changes:pause_command",
            "Stop sending a queue's records to its sink; new ones are queued.",
        ),
        "resume": (f"{_HERE}.queue_changes:resume_command", "Let a paused queue drain again."),
        "drain": (
            f"{_HERE}.drain:drain_command",
            "Have a queue's sink tried at once, and wait until the records that wait now have left the queue.",
        ),
        "purge": (f"{_HERE}.queue_changes:purge_command", "Delete all records of a queue permanently."),
        "dead-letters": (
            f"{_HERE}.dead_letters:dead_letters_command",
            "List the records that a queue's sink refused; put them back, or delete them.",
        ),
        "metrics": (
            f"{_HERE}.metrics:metrics_command",
            "Print the metrics of all queues in the format of Prometheus, or serve them.",
        ),
        "delete": (
            f"{_HERE}.queue_changes:delete_command",
            "Delete a queue that has no driver, with its records and its dead letters.",
        ),
    },
)
