"""The whole path once, for real: a lab of eight nodes, the chart, a job that trains, one that is preempted and resumes."""
