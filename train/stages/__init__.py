"""The pipeline from prompts to a served head, stage by stage; `train/stages/order.py` lists it."""
