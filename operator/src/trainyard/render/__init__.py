"""A plan and its settings to the objects that the API server takes."""
