"""How long each wait may take, in seconds. Every wait has one, so that nothing is stuck without saying so."""

from __future__ import annotations

from typing import Final

START: Final = 600.0
"""From the start of an attempt until all of its trainer containers run. Most of it is for pulling images."""
GROW: Final = 600.0
"""Of training, before a gang that runs with fewer nodes than it wants saves and starts again with all."""
DOUBTFUL: Final = 24 * 3600.0
"""How long a job would rather not have a node on which it failed first, where another is as good."""
AVOID: Final = 3600.0
"""How long a job does not get a node that an attempt found unfit before its first step."""
PROVEN: Final = 3600.0
"""How long a node that passed a preflight is not measured again when the job restarts."""
USUAL_START: Final = 60.0
"""From the start of an attempt until it trains, where the images are there: an estimate, for those who ask when it will be gone.
Nobody is delayed where it takes longer: who trains on lent nodes leaves them in time."""
UNSCHEDULED: Final = 5.0
"""A pinned pod that kube-scheduler cannot bind: somebody took the node."""
UNMADE: Final = 60.0
"""From the last pod of an attempt that the API server took, while it refuses the next: a quota, a webhook."""
NOT_READY: Final = 10.0
"""A node that is NotReady. The node controller has waited for 50 s of missed heartbeats before it says so; this rides out the
moment in which a kubelet restarts."""
DISRUPTED: Final = 300.0
"""Of a node that fell NotReady together with most others: rather the API server is out of their reach than all of them dead. As
long as Kubernetes leaves pods on a node that is NotReady."""
SILENT: Final = 60.0
"""A launcher that answered before. A node that dies may be silent this long before the node controller calls it dead (50 s of
grace, looked at every 5 s, and NOT_READY), so silence costs the job as little as a lost node does."""
UNHEARD: Final = 600.0
"""The same where all launchers of a gang fell silent at once on nodes that are ready: rather the way to them than all of them."""
PLAUSIBLE: Final = 60.0
"""Of training, after which a script that reports no steps is taken to have got somewhere."""
UNREACHED: Final = 30.0
"""A launcher that never answered, counted from the start of its container and from our first question: only signals are left."""
HEARD: Final = 15.0
"""Since its last answer, for a launcher to be counted on when its gang failed. Each is asked every 10 s at least, unless there
are thousands."""
GATHER: Final = 2.0
"""From the first failure that is heard of until it is judged, while there are members that still run: who failed first is told
from those that lost their peer by the time at which they did, and they end within a moment of each other."""
FINISH: Final = 120.0
"""Between the first member that is done and the last: they did the same steps."""
BROKEN_GRACE: Final = 10
"""Grace of a pod whose gang is broken already: nothing can be saved, since a save needs all ranks."""
KILLED: Final = 60.0
"""After the end of a deleted pod's grace: its kubelet does not answer, so nobody waits for it any more."""
WORDS: Final = 30.0
"""Between a pod's end and the removal of our finalizer, at most."""
LINGER: Final = 30.0
"""Between the end of a trainer and that of its pod, where the pod stays for its logs: longer, and sidecars hold its node."""
ASK_AGAIN: Final = 2.0
"""Between two requests to the same launcher."""
TELLING: Final = 2.0
"""Between two writes of a status that has nothing new but progress, or words about why its job waits."""
TOLD_A_SECOND: Final = 40
"""Such writes of all jobs together: two fifths of the requests that the operator allows itself (kube.client)."""
RESERVATION: Final = 120.0
"""How long a reservation outlives the grace of those it waits for."""
BACK_OFF_FIRST: Final = 5.0
BACK_OFF_MOST: Final = 300.0
"""The first and the longest wait between attempts that bring no new step."""
TRY_AGAIN: Final = 10.0
"""Between two trials of a pod that the API server would not take for a reason that may pass."""
EVENTUALLY: Final = 30.0
"""Between two looks at a thing whose change no watch reports."""


HANDOVER: Final = 15.0
"""For a launcher that was kept to take the plan of the next attempt. It answers within seconds unless it is frozen or gone."""


def handover(members: int) -> float:
    """The same for a gang: each is sent the whole plan, which takes its time where there are thousands."""
    return HANDOVER + 0.02 * members


def telling(jobs: int) -> float:
    """TELLING where so many jobs have not ended."""
    return max(TELLING, jobs / TOLD_A_SECOND)


def heard(members: int) -> float:
    """HEARD for a gang: the poller begins 240 questions a second (kube.launchers), so it takes a while to come round."""
    return HEARD + members / 200


def back_off(fruitless: int) -> float:
    """The wait before the next attempt after so many in a row without a new step; none after the first."""
    if fruitless <= 1:
        return 0.0
    return min(BACK_OFF_MOST, BACK_OFF_FIRST * 2.0 ** min(fruitless - 2, 16))
