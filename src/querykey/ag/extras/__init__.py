"""What makes the engine faster, more watchful or at home in other libraries; it runs without."""
