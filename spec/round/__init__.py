"""One device round: open, draft, verify, accept, extend, publish; eager or as CUDA graphs."""
