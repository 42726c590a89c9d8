"""The gate: whom it knows (keys and tenants), what each may ask for, and what is admitted, queued or refused.

Policy is in `admission.py` and `fair_queue.py`: values in, a decision out. `gate.py` is the mechanism over them, one
for each ingress process. Nothing here knows Ray.
"""
