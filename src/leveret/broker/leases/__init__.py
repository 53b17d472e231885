"""Leases: numbered batches of a queue's entries for a reader outside, that can be read again until they are committed.

A planned batch is positions in the log. Its entries have left the backlog, as those that a consumer holds, and stay where
they are in the log: the plan is one metadata record of sequence numbers, so a start hands them to the lease again and to
nobody else. A commit settles all of them at once. `operations` is what others call; each of the other modules has one
subject.
"""
