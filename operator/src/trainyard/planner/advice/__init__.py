"""What would let a gang start that waits, each way verified by planning it."""
