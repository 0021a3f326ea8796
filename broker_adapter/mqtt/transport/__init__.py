"""Listeners and byte streams: TCP, TLS and WebSocket, and sending with bounds."""
