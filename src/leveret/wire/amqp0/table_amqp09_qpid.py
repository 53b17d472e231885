"""Classes that Qpid's peers of 2006 to 2009 add to 0-9, in the notation of `notation.py`.

Qpid's methods in other classes are in the table of 0-9.
"""

from __future__ import annotations

from typing import Final

TEXT: Final = """
+class dtx-demarcation 101 server client
  +10 select sync server -> select-ok
  +11 select-ok sync client
  +20 start sync server -> start-ok | short ticket, longstr xid, bit join resume
  +21 start-ok sync client | short flags
  +30 end sync server -> end-ok | short ticket, longstr xid, bit fail suspend
  +31 end-ok sync client | short flags

+class dtx-coordination 105 server client
  +10 commit sync server -> commit-ok | short ticket, longstr xid, bit one-phase
  +11 commit-ok sync client | short flags
  +20 forget sync server -> forget-ok | short ticket, longstr xid
  +21 forget-ok sync client
  +30 get-timeout sync server -> get-timeout-ok | longstr xid
  +31 get-timeout-ok sync client | long timeout
  +40 prepare sync server -> prepare-ok | short ticket, longstr xid
  +41 prepare-ok sync client | short flags
  +50 recover sync server -> recover-ok | short ticket, bit startscan, long endscan
  +51 recover-ok sync client | table xids
  +60 rollback sync server -> rollback-ok | short ticket, longstr xid
  +61 rollback-ok sync client | short flags
  +70 set-timeout sync server -> set-timeout-ok | short ticket, longstr xid, long timeout
  +71 set-timeout-ok sync client

+class binding 130 server client
  +10 query sync server -> query-ok | short ticket, shortstr exchange queue routing-key, table arguments
  +11 query-ok sync client | bit exchange-not-found queue-not-found queue-not-matched key-not-matched args-not-matched

+class execution 140 server client
  +10 flush server client
  +20 complete server client | long mark
"""
