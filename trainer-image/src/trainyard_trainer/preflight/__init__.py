"""Before the first step: are all nodes alike, and is the network as fast as it should be? In the workers that go on to train.

`gang` is the whole of it, called by all ranks; `exchange` measures over the process group; `unlike` compares what pods found of
themselves, `pairs` says who measures with whom, `judge` who is slow: these three are pure. Answers are gathered and given through
the process group's store, which works where collectives do not.
"""
