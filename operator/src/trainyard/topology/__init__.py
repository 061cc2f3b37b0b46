"""Node labels to a tree of network domains."""
