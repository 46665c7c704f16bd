"""The pipeline from prompts to a served head, stage by stage; `train/pipeline/order.py` lists it."""
