"""The words that every room shares: classes, targets, settings, outcomes, errors, messages, metric names.

Owns no behaviour beyond comparing and checking values. Imports the standard library and pydantic, and no other room.
"""
