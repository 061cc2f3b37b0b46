"""The network, and the weights it begins with."""
