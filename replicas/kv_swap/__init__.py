"""KV swap: a victim's own KV blocks go to host memory, or to a file, beside the forward pass, and come back later.

`cost` and `pool` decide and keep accounts on the scheduler's side; `copier` moves bytes on the worker's side.
"""
