"""MQTT 3.1.1 and 5 as bytes: packets in and out, no sockets, no clocks, no event loop."""
