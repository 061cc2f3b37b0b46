"""Which nodes a gang gets, in which rank order; why not; who must leave for it."""
