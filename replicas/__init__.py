"""Replicas: the vLLM engines behind the ingress, one a process, and what they need to start."""
