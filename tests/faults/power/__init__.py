"""Power cuts at any moment of a recorded run. The recording has the actions of the clients between the file operations; the
check tells whether a broker that starts on the remaining files keeps its guarantees.
"""
