"""PID 1 of a member's pod: starts the workers, sees signals at once, answers the operator, and says how it ended.

Standard library only (with `trainyard.contract` and `trainyard_trainer.report`): the launcher is carried into images that
have nothing but a Python interpreter, and starts in a fraction of a second.

The modules, from the edge in: `main` reads who we are; `supervisor` is the one loop that decides, `attempt` the state that it
moves; `starting` brings the workers up; `network` finds out what the pod's network is, and what libraries complain of; `loop`
waits for signals and pipes; `workers` are the processes, `zygote` forks them from one import of torch, `program` says which can
be forked and `become` runs those; `output` passes on what they print; `control` is the HTTP endpoint, `endpoint` what it answers;
`guard` ends the workers of a launcher that is killed.
Pure: `environment` (plan to worker environment), `progress` (reports to what is known), `hang` (silence to blame), `ending` (what
happened to exit code and last words), `metrics` (to Prometheus text). `usage` reads what workers use.
"""
