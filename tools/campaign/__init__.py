"""Faults on purpose: kills, flipped bits, second writers, signals and full disks."""
