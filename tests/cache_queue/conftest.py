"""The engines of the adapter's contract suite, for what queues promise on all of them."""

from __future__ import annotations

from tests.adapter_contract.conftest import adapter, opening, pytest_generate_tests

__all__ = ["adapter", "opening", "pytest_generate_tests"]
