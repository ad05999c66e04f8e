"""What decoding must remember, as values that go in and come out of `extend`."""
