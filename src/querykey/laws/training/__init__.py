"""The laws of a training loop: what is watched while it trains a few steps, and the verdicts."""
