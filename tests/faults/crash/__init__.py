"""The crash checker: clients that remember what the broker promised, a broker that is killed, a look at what is left.

`model` knows what must, may and must not be in each queue; `workload` are the clients; `rounds` kills and checks.
"""
