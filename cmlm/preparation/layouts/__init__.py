"""Readers of the layouts of `cmlm.prepare`; `sources.LAYOUTS` lists them."""
