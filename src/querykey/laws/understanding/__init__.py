"""What a model is, found by trying it: inputs, masks, positions, cache, causal or not."""
