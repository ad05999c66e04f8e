"""What attention IS: small frozen specs and their equations, on any array library."""
