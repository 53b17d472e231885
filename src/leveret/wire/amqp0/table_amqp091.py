"""AMQP 0-9-1 in the notation of `notation.py`, with RabbitMQ's extensions (marked `+`)."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp0.model import Version
from leveret.wire.amqp0.notation import parse

TEXT: Final = """
constant frame-method 1
constant frame-header 2
constant frame-body 3
constant frame-heartbeat 8
constant frame-min-size 4096
constant frame-end 206
constant reply-success 200
constant content-too-large 311 soft
constant no-consumers 313 soft
constant connection-forced 320 hard
constant invalid-path 402 hard
constant access-refused 403 soft
constant not-found 404 soft
constant resource-locked 405 soft
constant precondition-failed 406 soft
constant frame-error 501 hard
constant syntax-error 502 hard
constant command-invalid 503 hard
constant channel-error 504 hard
constant unexpected-frame 505 hard
constant resource-error 506 hard
constant not-allowed 530 hard
constant not-implemented 540 hard
constant internal-error 541 hard
+constant no-route 312 soft

class connection 10 server client
  10 start sync client -> start-ok | octet version-major version-minor, table server-properties, longstr mechanisms
      locales
  11 start-ok sync server | table client-properties, shortstr mechanism, longstr response, shortstr locale
  20 secure sync client -> secure-ok | longstr challenge
  21 secure-ok sync server | longstr response
  30 tune sync client -> tune-ok | short channel-max, long frame-max, short heartbeat
  31 tune-ok sync server | short channel-max, long frame-max, short heartbeat
  40 open sync server -> open-ok | shortstr virtual-host (reserved-1), bit (reserved-2)
  41 open-ok sync client | shortstr (reserved-1)
  50 close sync client server -> close-ok | short reply-code, shortstr reply-text, short class-id method-id
  51 close-ok sync client server
  +60 blocked client | shortstr reason
  +61 unblocked client
  +70 update-secret sync server -> update-secret-ok | longstr new-secret, shortstr reason
  +71 update-secret-ok sync client

class channel 20 server client
  10 open sync server -> open-ok | shortstr (reserved-1)
  11 open-ok sync client | longstr (reserved-1)
  20 flow sync server client -> flow-ok | bit active
  21 flow-ok server client | bit active
  40 close sync client server -> close-ok | short reply-code, shortstr reply-text, short class-id method-id
  41 close-ok sync client server

class exchange 40 server client
  10 declare sync server -> declare-ok | short (reserved-1), shortstr exchange type, bit passive durable
      +auto-delete=reserved-2 +internal=reserved-3 no-wait, table arguments
  11 declare-ok sync client
  20 delete sync server -> delete-ok | short (reserved-1), shortstr exchange, bit if-unused no-wait
  21 delete-ok sync client
  +30 bind sync server -> bind-ok | short (reserved-1), shortstr destination source routing-key, bit no-wait, table
      arguments
  +31 bind-ok sync client
  +40 unbind sync server -> unbind-ok | short (reserved-1), shortstr destination source routing-key, bit no-wait,
      table arguments
  +51 unbind-ok sync client

class queue 50 server client
  10 declare sync server -> declare-ok | short (reserved-1), shortstr queue, bit passive durable exclusive
      auto-delete no-wait, table arguments
  11 declare-ok sync client | shortstr queue, long message-count consumer-count
  20 bind sync server -> bind-ok | short (reserved-1), shortstr queue exchange routing-key, bit no-wait, table
      arguments
  21 bind-ok sync client
  50 unbind sync server -> unbind-ok | short (reserved-1), shortstr queue exchange routing-key, table arguments
  51 unbind-ok sync client
  30 purge sync server -> purge-ok | short (reserved-1), shortstr queue, bit no-wait
  31 purge-ok sync client | long message-count
  40 delete sync server -> delete-ok | short (reserved-1), shortstr queue, bit if-unused if-empty no-wait
  41 delete-ok sync client | long message-count

class basic 60 server client
  properties shortstr content-type content-encoding, table headers, octet delivery-mode priority, shortstr
      correlation-id reply-to expiration message-id, timestamp timestamp, shortstr type user-id app-id
      +cluster-id=reserved
  10 qos sync server -> qos-ok | long prefetch-size, short prefetch-count, bit global
  11 qos-ok sync client
  20 consume sync server -> consume-ok | short (reserved-1), shortstr queue consumer-tag, bit no-local no-ack
      exclusive no-wait, table arguments
  21 consume-ok sync client | shortstr consumer-tag
  30 cancel sync server +client -> cancel-ok | shortstr consumer-tag, bit no-wait
  31 cancel-ok sync client +server | shortstr consumer-tag
  40 publish content server | short (reserved-1), shortstr exchange routing-key, bit mandatory immediate
  50 return content client | short reply-code, shortstr reply-text exchange routing-key
  60 deliver content client | shortstr consumer-tag, longlong delivery-tag, bit redelivered, shortstr exchange
      routing-key
  70 get sync server -> get-ok get-empty | short (reserved-1), shortstr queue, bit no-ack
  71 get-ok sync content client | longlong delivery-tag, bit redelivered, shortstr exchange routing-key, long
      message-count
  72 get-empty sync client | shortstr (reserved-1)
  80 ack server +client | longlong delivery-tag, bit multiple
  90 reject server | longlong delivery-tag, bit requeue
  100 recover-async server | bit requeue
  110 recover server | bit requeue
  111 recover-ok sync client
  +120 nack server client | longlong delivery-tag, bit multiple requeue

class tx 90 server client
  10 select sync server -> select-ok
  11 select-ok sync client
  20 commit sync server -> commit-ok
  21 commit-ok sync client
  30 rollback sync server -> rollback-ok
  31 rollback-ok sync client

+class confirm 85 server client
  +10 select sync server -> select-ok | bit no-wait
  +11 select-ok sync client
"""

V0_9_1: Final[Version] = parse("0-9-1", TEXT)
