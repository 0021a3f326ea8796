"""Tests of what administrators of brokers do: rights, lists of clients, kicks, bans."""
