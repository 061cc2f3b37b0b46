"""What operator and trainer say to each other, and nothing else.

Plan file, status, signed requests, exit codes, last words. Standard library only: the launcher carries this package into
images that have nothing but a Python interpreter.
"""
