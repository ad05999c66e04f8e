"""Which module breaks a law: recorded calls, their comparison, known limitations, reproductions."""
