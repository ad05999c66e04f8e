"""How long a pass takes: bytes moved, the roofline of a device, predictions from measuring."""
