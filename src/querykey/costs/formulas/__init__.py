"""Formulas in named sizes: derived from symbolic sizes, or interpolated; and where they hold."""
