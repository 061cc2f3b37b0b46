"""Checkpoints that prove themselves: written once, hashed, committed by one rename, and loaded only if all of it
verifies.
"""
