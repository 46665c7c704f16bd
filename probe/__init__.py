"""Measurements from inside the process; each prints a table, and its cells can be written as JSON.

compare            the same text with speculation on and off, and how much faster
draft_temperature  how far the head's distribution is to be trusted
trees              trees against chains of the same size
tune               the fastest shape at each load, written into a config by config_file
trace              steps as a timeline of host and lane (lane_log notes, timeline draws)
overlap            how well the scheduler keeps a simulated fast device busy
gpu_check          whether a GPU's attention, graphs and tokens are the right ones (attention_cases)
gpu_bench          what a GPU gives by load and acceptance (steady batches, peaks of devices, gpu_plots)

drive runs requests through a real scheduler over a lane, acceptance measures one shape with it, shapes are what may be
drafted; margins explain answers that differ; report writes tables and JSON.
"""
