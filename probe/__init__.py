"""Measurements from inside the process; each prints a table, and its cells can be written as JSON.

compare            the same text with speculation on and off, and the speed-up
draft_temperature  how sharply to draft from the head's distribution
trees              trees against chains of the same size
tune               the fastest shape at each load, written into a config by config_file
trace              steps as a timeline of host and lane (lane_log records, timeline draws)
overlap            how well the scheduler keeps a simulated fast device busy
gpu_check          whether a GPU's attention, graphs and tokens are correct (attention_cases)
gpu_bench          a GPU's speed by load and acceptance (steady batches, peaks of devices, gpu_plots)

drive runs requests through a real scheduler over a lane, acceptance measures one shape with it, and shapes lists what
can be drafted; margins explains different answers; report writes tables and JSON.
"""
