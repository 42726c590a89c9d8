"""LoRA adapters that lie in a directory and are loaded when a request names one."""
