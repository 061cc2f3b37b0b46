"""The only room that talks to the API server and to launchers.

What is there comes in through `mirror` (informers, launchers' answers, trials) and leaves as one frozen World; what a cycle wants
goes out through `writer`. Everything between is raw JSON: the client's typed models cost a millisecond an object and refuse
fields that are newer than they are.
"""
