"""The crash checker: clients that record the broker's guarantees, a broker that is killed, and a check of what it recovers.

`model` knows what each queue must, may and must not contain, `workload` has the clients, and `rounds` kills and checks.
"""
