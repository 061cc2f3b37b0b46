"""How `preempt` finds whom to ask to leave: sets of jobs that free a place at the least cost."""
