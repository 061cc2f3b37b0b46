"""Text to steps: what is read, in which order, and which rank takes which samples."""
