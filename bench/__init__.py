"""Measurements of the running system: load, side-by-side comparisons, reports."""
