"""From dumps and web archives to training text, with Beam, for `cmlm.prepare`."""
