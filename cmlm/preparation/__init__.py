"""Turns dumps and web archives into training text, with Beam: `cmlm.prepare`."""
