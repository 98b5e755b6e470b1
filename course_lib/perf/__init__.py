"""What a forward pass costs, what a machine can do, and how the two were measured.

`counts` counts FLOPs and bytes from a config, `roofline` turns them into bounds on time, `probe` measures the ceilings
of the machine it runs on, `timing` times a function fairly.
"""
