"""Files of the pipeline: lines, shards of features, rendered and packed conversations."""
