"""The commands: `trainyard`, which is the operator's image, and `kubectl trainyard`, for people."""
