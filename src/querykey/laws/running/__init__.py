"""Many targets at once: worker processes, stored reports, and the command `qk check`."""
