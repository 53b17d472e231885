/* One load: what the publishers and consumers of a run do. */
#ifndef LOAD_H
#define LOAD_H

#include "amqp.h"

struct load {
    struct address broker;
    int watch;               /* pid of the broker, whose CPU time and memory are reported; 0 for none */
    int publishers, consumers, queues;
    size_t size;             /* octets of a body; at least 16: the time of sending and a number stand in it */
    int properties;          /* messages have an id and some more */
    int durable;             /* persistent messages on durable queues */
    int stream;              /* the queues are streams, of which every consumer reads all */
    const char *offset;      /* where the readers of streams begin */
    int confirm;
    unsigned window;         /* with confirms: publishes in flight, per publisher */
    unsigned batch;          /* at most so many publishes in one write */
    unsigned max_backlog;    /* publishers pause while more messages than this wait for delivery */
    double rate;             /* messages a second, all publishers together; 0 for as many as go */
    int no_ack;
    unsigned prefetch, ack_every;
    int ack_single;          /* one ack a message, those of `ack_every` messages in random order */
    const char *exchange;    /* "" (by the name of the queue), "fanout" or "topic" */
    unsigned bindings;       /* topic: bindings, spread over the queues */
    const char *prefix;      /* of all names that are declared */
    int publish1, consume1;  /* publishers, consumers speak AMQP 1.0 */
    int old;                 /* both speak AMQP 0-9, which has no confirms; queues are declared over 0-9-1 */
    int declare;             /* declare the queues over 0-9-1; without it links do, by attaching */
    const char *address;     /* 1.0: what precedes the name of a queue in an address */
    double warmup, seconds;
    uint64_t messages;       /* instead of a time: stop after so many publishes, or deliveries where nobody publishes */
    int keep;                /* leave the queues there */
};

/* Runs the load and prints one JSON object. SIGTERM ends it early, once the warm-up is over. */
void load_run(const struct load *load);

/* Declares `count` durable queues one after the other; prints the milliseconds that each thousand took. */
void load_declare(const struct load *load, unsigned count);

/* Opens `count` connections with a channel each, prints "open", and keeps them until its input ends. */
void load_idle(const struct load *load, unsigned count);

/* Echoes `messages` (or for `seconds`) at `rate` between two processes, no broker in between; prints one JSON object. */
void load_floor(const struct load *load);

#endif
