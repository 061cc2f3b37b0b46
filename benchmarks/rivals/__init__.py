"""The rules by which other schedulers choose nodes and ranks, written from their descriptions.

Each takes what `rival.Rival` says and nothing else, so that all stand on the same ground: the room by node and domain in, the
nodes of the ranks out. They are here to be compared with and are no part of the product.
"""
