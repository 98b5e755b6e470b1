"""Benchmarks: each compares peers in one run and writes raw samples with their conditions as JSON."""
