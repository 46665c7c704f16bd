"""Measurements from inside the process; each prints a table, and its cells can be written as JSON.

overlap            how well the scheduler keeps a simulated fast device busy
"""
