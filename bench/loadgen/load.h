/* One load: the work of the publishers and consumers of a run. */
#ifndef LOAD_H
#define LOAD_H

#include "amqp.h"

struct load {
    struct address broker;
    int watch;               /* pid of the broker, whose CPU time and memory are reported; 0 for none */
    int publishers, consumers, queues;
    size_t size;             /* bytes per body; at least 16, for the send time and a number */
    int properties;          /* messages have an id and other properties */
    int durable;             /* persistent messages on durable queues */
    int stream;              /* the queues are streams; each consumer reads all of one */
    const char *offset;      /* start of stream readers */
    int confirm;
    unsigned window;         /* with confirms: publishes in flight, per publisher */
    unsigned batch;          /* maximum number of publishes per write */
    unsigned max_backlog;    /* publishers pause while more messages than this are undelivered; 0: they never pause */
    double rate;             /* messages per second, all publishers together; 0 for the maximum */
    double consume_rate;     /* messages per second that each consumer reads; 0 for the maximum */
    int no_ack;
    unsigned prefetch, ack_every;
    int ack_single;          /* one ack per message, those of `ack_every` messages in random order */
    const char *exchange;    /* "" (by the name of the queue), "fanout" or "topic" */
    unsigned bindings;       /* topic: bindings, spread over the queues */
    unsigned keys;           /* topic: routing keys in use, each of another binding; 0 for those of all bindings */
    const char *prefix;      /* of all declared names */
    int publish1, consume1;  /* publishers, consumers speak AMQP 1.0 */
    int old;                 /* both speak AMQP 0-9, which has no confirms; queues are declared over 0-9-1 */
    int declare;             /* declare the queues over 0-9-1; otherwise links create them */
    const char *address;     /* 1.0: address prefix of queue names */
    double warmup, seconds;
    uint64_t messages;       /* instead of a time: stop after this many publishes (deliveries without publishers) */
    int keep;                /* do not delete the queues */
};

/* Runs the load and prints one JSON object. SIGTERM ends it early, once the warm-up is over. */
void load_run(const struct load *load);

/* Declares `count` durable queues one after the other; prints the milliseconds of each thousand. */
void load_declare(const struct load *load, unsigned count);

/* Opens `count` connections with a channel each, prints "open", and keeps them until its input ends. */
void load_idle(const struct load *load, unsigned count);

/* Echoes `messages` (or for `seconds`) at `rate` between two processes, without a broker; prints one JSON object. */
void load_floor(const struct load *load);

/* Sends `size` bytes per message to a relay that returns them on its first connection, `window` in flight, at `rate` if it is
   not 0; prints one JSON object. */
void load_relay(const struct load *load);

#endif
