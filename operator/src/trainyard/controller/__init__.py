"""The operator as a process: it alone knows kopf, and ties watching, judging and acting together."""
