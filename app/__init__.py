"""The ingress: HTTP, classification, dispatch and streaming.

Imports `slo`; `main.py` alone also imports the rooms that it binds together. Knows neither vLLM nor torch.
"""
