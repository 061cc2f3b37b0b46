"""One job: what happened to it, what it is now, and what it needs next. Pure: records in, a decision out."""
