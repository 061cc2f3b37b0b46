"""The fabric's description and the job's wishes to settings, each with its source."""
