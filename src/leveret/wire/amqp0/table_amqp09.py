"""AMQP 0-9 (protocol header 1 1 0 9) in the notation of `notation.py`."""

from __future__ import annotations

from typing import Final

from leveret.wire.amqp0.model import BIT, FieldSpec, MethodSpec, Version
from leveret.wire.amqp0.notation import parse
from leveret.wire.amqp0.table_amqp09_qpid import TEXT as QPID

TEXT: Final = """
constant frame-method 1
constant frame-header 2
constant frame-body 3
constant frame-oob-method 4
constant frame-oob-header 5
constant frame-oob-body 6
constant frame-trace 7
constant frame-heartbeat 8
constant frame-min-size 4096
constant frame-end 206
constant reply-success 200
constant not-delivered 310 soft
constant content-too-large 311 soft
constant no-route 312 soft
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
constant resource-error 506 hard
constant not-allowed 530 hard
constant not-implemented 540 hard
constant internal-error 541 hard

class connection 10 server client
  10 start sync client -> start-ok | octet version-major version-minor, table server-properties, longstr mechanisms
      locales
  11 start-ok sync server | table client-properties, shortstr mechanism, longstr response, shortstr locale
  20 secure sync client -> secure-ok | longstr challenge
  21 secure-ok sync server | longstr response
  30 tune sync client -> tune-ok | short channel-max, long frame-max, short heartbeat
  31 tune-ok sync server | short channel-max, long frame-max, short heartbeat
  40 open sync server -> open-ok redirect | shortstr virtual-host capabilities, bit insist
  41 open-ok sync client | shortstr known-hosts
  42 redirect sync client | shortstr host known-hosts
  50 close sync client server -> close-ok | short reply-code, shortstr reply-text, short class-id method-id
  51 close-ok sync client server

class channel 20 server client
  10 open sync server -> open-ok | shortstr out-of-band
  11 open-ok sync client | longstr channel-id
  20 flow sync server client -> flow-ok | bit active
  21 flow-ok server client | bit active
  40 close sync client server -> close-ok | short reply-code, shortstr reply-text, short class-id method-id
  41 close-ok sync client server
  50 resume server -> ok | longstr channel-id
  60 ping server client -> ok
  70 pong server client -> ok
  80 ok server client

class access 30 server client
  10 request sync server -> request-ok | shortstr realm, bit exclusive passive active write read
  11 request-ok sync client | short ticket

class exchange 40 server client
  10 declare sync server -> declare-ok | short ticket, shortstr exchange type, bit passive durable auto-delete
      internal nowait, table arguments
  11 declare-ok sync client
  20 delete sync server -> delete-ok | short ticket, shortstr exchange, bit if-unused nowait
  21 delete-ok sync client
  +22 bound sync server -> bound-ok | shortstr exchange routing-key queue
  +23 bound-ok sync client | short reply-code, shortstr reply-text
  +30 query sync server -> query-ok | short ticket, shortstr exchange
  +31 query-ok sync client | shortstr type, bit durable not-found, table arguments

class queue 50 server client
  10 declare sync server -> declare-ok | short ticket, shortstr queue, bit passive durable exclusive auto-delete
      nowait, table arguments
  11 declare-ok sync client | shortstr queue, long message-count consumer-count
  20 bind sync server -> bind-ok | short ticket, shortstr queue exchange routing-key, bit nowait, table arguments
  21 bind-ok sync client
  50 unbind sync server -> unbind-ok | short ticket, shortstr queue exchange routing-key, table arguments
  51 unbind-ok sync client
  30 purge sync server -> purge-ok | short ticket, shortstr queue, bit nowait
  31 purge-ok sync client | long message-count
  40 delete sync server -> delete-ok | short ticket, shortstr queue, bit if-unused if-empty nowait
  41 delete-ok sync client | long message-count

class basic 60 server client
  properties shortstr content-type content-encoding, table headers, octet delivery-mode priority, shortstr
      correlation-id reply-to expiration message-id, timestamp timestamp, shortstr type user-id app-id cluster-id
  10 qos sync server -> qos-ok | long prefetch-size, short prefetch-count, bit global
  11 qos-ok sync client
  20 consume sync server -> consume-ok | short ticket, shortstr queue consumer-tag, bit no-local no-ack exclusive
      nowait, table filter
  21 consume-ok sync client | shortstr consumer-tag
  30 cancel sync server -> cancel-ok | shortstr consumer-tag, bit nowait
  31 cancel-ok sync client | shortstr consumer-tag
  40 publish content server | short ticket, shortstr exchange routing-key, bit mandatory immediate
  50 return content client | short reply-code, shortstr reply-text exchange routing-key
  60 deliver content client | shortstr consumer-tag, longlong delivery-tag, bit redelivered, shortstr exchange
      routing-key
  70 get sync server -> get-ok get-empty | short ticket, shortstr queue, bit no-ack
  71 get-ok sync content client | longlong delivery-tag, bit redelivered, shortstr exchange routing-key, long
      message-count
  72 get-empty sync client | shortstr cluster-id
  80 ack server | longlong delivery-tag, bit multiple
  90 reject server | longlong delivery-tag, bit requeue
  100 recover server | bit requeue
  +101 recover-sync-ok sync client
  +102 recover-sync sync server -> recover-sync-ok | bit requeue

class file 70 server client
  properties shortstr content-type content-encoding, table headers, octet priority, shortstr reply-to message-id
      filename, timestamp timestamp, shortstr cluster-id
  10 qos sync server -> qos-ok | long prefetch-size, short prefetch-count, bit global
  11 qos-ok sync client
  20 consume sync server -> consume-ok | short ticket, shortstr queue consumer-tag, bit no-local no-ack exclusive
      nowait, table filter
  21 consume-ok sync client | shortstr consumer-tag
  30 cancel sync server -> cancel-ok | shortstr consumer-tag, bit nowait
  31 cancel-ok sync client | shortstr consumer-tag
  40 open sync server client -> open-ok | shortstr identifier, longlong content-size
  41 open-ok sync server client -> stage | longlong staged-size
  50 stage content server client
  60 publish server | short ticket, shortstr exchange routing-key, bit mandatory immediate, shortstr identifier
  70 return content client | short reply-code, shortstr reply-text exchange routing-key
  80 deliver client | shortstr consumer-tag, longlong delivery-tag, bit redelivered, shortstr exchange routing-key
      identifier
  90 ack server | longlong delivery-tag, bit multiple
  100 reject server | longlong delivery-tag, bit requeue

class stream 80 server client
  properties shortstr content-type content-encoding, table headers, octet priority, timestamp timestamp
  10 qos sync server -> qos-ok | long prefetch-size, short prefetch-count, long consume-rate, bit global
  11 qos-ok sync client
  20 consume sync server -> consume-ok | short ticket, shortstr queue consumer-tag, bit no-local exclusive nowait,
      table filter
  21 consume-ok sync client | shortstr consumer-tag
  30 cancel sync server -> cancel-ok | shortstr consumer-tag, bit nowait
  31 cancel-ok sync client | shortstr consumer-tag
  40 publish content server | short ticket, shortstr exchange routing-key, bit mandatory immediate
  50 return content client | short reply-code, shortstr reply-text exchange routing-key
  60 deliver content client | shortstr consumer-tag, longlong delivery-tag, shortstr exchange queue

class tx 90 server client
  10 select sync server -> select-ok
  11 select-ok sync client
  20 commit sync server -> commit-ok
  21 commit-ok sync client
  30 rollback sync server -> rollback-ok
  31 rollback-ok sync client

class dtx 100 server client
  10 select sync server -> select-ok
  11 select-ok sync client
  20 start sync server -> start-ok | shortstr dtx-identifier
  21 start-ok sync client

class tunnel 110 server client
  properties table headers, shortstr proxy-name data-name, octet durable broadcast
  10 request content server | table meta-data

class message 120 server client
  10 transfer server client -> ok reject | short ticket, shortstr destination, bit redelivered immediate, longlong
      ttl, octet priority, timestamp timestamp, octet delivery-mode, timestamp expiration, shortstr exchange
      routing-key message-id correlation-id reply-to content-type content-encoding user-id app-id transaction-id,
      longstr security-token, table application-headers, content body
  20 consume server -> ok | short ticket, shortstr queue destination, bit no-local no-ack exclusive, table filter
  30 cancel server -> ok | shortstr destination
  40 get server -> ok empty | short ticket, shortstr queue destination, bit no-ack
  50 recover server -> ok | bit requeue
  60 open server client -> ok | longstr reference
  70 close server client -> ok | longstr reference
  80 append server client -> ok | longstr reference, octets bytes
  90 checkpoint server client -> ok | longstr reference, shortstr identifier
  100 resume server client -> offset | longstr reference, shortstr identifier
  110 qos server -> ok | long prefetch-size, short prefetch-count, bit global
  500 ok server client
  510 empty server client
  520 reject server client | short code, shortstr text
  530 offset server client | longlong value
"""


def _with_requests(version: Version) -> Version:
    """Return the version for wrapped methods: Qpid's errata add a bit to `message.transfer`."""
    other = version.copy()
    spec = version.by_name["message.transfer"]
    mandatory = FieldSpec("mandatory", "mandatory", BIT, False, True)
    transfer = MethodSpec(
        spec.name,
        spec.class_id,
        spec.method_id,
        spec.sync,
        spec.content,
        spec.server_receives,
        spec.client_receives,
        [*spec.fields, mandatory],
        spec.responses,
        spec.spec_receivers,
        True,
    )
    other.methods[transfer.key] = transfer
    other.by_name[transfer.name] = transfer
    return other


V0_9: Final[Version] = parse("0-9", TEXT + QPID)
V0_9.requests = _with_requests(V0_9)
