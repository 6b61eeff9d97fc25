"""What a storm does to processes, server, data, clocks and network: one function a kind of fault.

Each takes the storm, does the fault to its end, and returns whether it struck: False where there was nothing to strike.
"""
