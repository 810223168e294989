"""Devices: availability, transfer, settings of the process, ranks."""
