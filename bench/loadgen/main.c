/* loadgen: a load generator for AMQP 0-9-1, 0-9 and 1.0 that uses much less CPU than the brokers. See `loadgen --help`. */
#include "amqp1.h"
#include "load.h"
#include "stats.h"

#include <getopt.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static const char help[] =
    "loadgen run|declare|idle|floor|relay [options]\n"
    "  run      publish and consume, print one JSON object\n"
    "  declare  --messages durable queues, print the milliseconds of each thousand\n"
    "  idle     --messages connections, kept until the input ends, with heartbeats every --heartbeat seconds (0: none); 0-9-1,\n"
    "           --0-9 --window 0, or --consume-1.0 with a session in place of the channel\n"
    "  relay    messages of --size bytes, --window in flight or at --rate, through a relay without a protocol\n"
    "  floor    echoes of --size bytes at --rate between two processes, without a broker\n"
    "  --host --port --user --password --vhost --prefix   the broker, and the prefix of declared names\n"
    "  --watch PID        report CPU time and memory of this process\n"
    "  --publishers N --consumers N --queues N --size BYTES --durable --properties --keep\n"
    "  --stream [--offset first|last|next]   the queues are streams, and each consumer reads one (default next)\n"
    "  --window N         publishes in flight per publisher (0: no confirms)\n"
    "  --batch N          maximum publishes per write     --rate R   messages per second in total\n"
    "  --no-ack | --prefetch N --ack-every N [--ack-single]\n"
    "  --exchange fanout|topic --bindings N [--keys N]   the routing keys in use (default: one of each binding)\n"
    "  --publish-1.0 --consume-1.0   speak AMQP 1.0, with unsettled deliveries in place of confirms and acks\n"
    "  --0-9              speak AMQP 0-9, which has no confirms (--window 0)\n"
    "  --address PREFIX   address prefix of queue names over 1.0 (default /amq/queue/)\n"
    "  --no-declare       links create the queues\n"
    "  --max-backlog N    publishers pause while more messages are in the queues (0: they never pause)\n"
    "  --consume-rate R   messages per second that each consumer reads from its socket\n"
    "  --warmup S --seconds S | --messages N\n";

void load_declare(const struct load *load, unsigned count)
{
    int fd = amqp_open(&load->broker);
    uint64_t begin = now_ns(), thousand = begin;
    printf("{\"milliseconds_per_thousand\": [");
    for (unsigned i = 0; i < count; i++) {
        char name[256];
        snprintf(name, sizeof name, "%s-%u", load->prefix, i);
        amqp_declare_queue(fd, name, load->durable, load->stream);
        if (i % 1000 == 999) {
            uint64_t now = now_ns();
            printf("%s%.1f", i == 999 ? "" : ", ", (double)(now - thousand) / 1e6);
            thousand = now;
        }
    }
    printf("], \"seconds\": %.3f}\n", (double)(now_ns() - begin) / 1e9);
    amqp_say_close(fd);
    amqp_await_close(fd);
}

/* Until the input ends: send a heartbeat on each connection twice per interval, and discard what has arrived there. */
static void keep_alive(const int *fds, unsigned count, unsigned interval, int amqp10)
{
    static const uint8_t heartbeats[2][8] = {{8, 0, 0, 0, 0, 0, 0, 0xce}, {0, 0, 0, 8, 2, 0, 0, 0}};
    const uint8_t *heartbeat = heartbeats[amqp10];
    uint8_t discarded[4096];
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    uint64_t begin = now_ns(), sent = 0;
    for (;;) {
        if (poll(&input, 1, interval ? 2 : -1) > 0 && getchar() == EOF)
            return;
        if (!interval)
            continue;
        uint64_t due = (uint64_t)((double)(now_ns() - begin) / 1e9 * 2 / interval * count);
        for (; sent < due; sent++) {
            int fd = fds[sent % count];
            if (send(fd, heartbeat, sizeof heartbeats[0], MSG_NOSIGNAL) != (ssize_t)sizeof heartbeats[0])
                die("the broker closed an idle connection");
            while (recv(fd, discarded, sizeof discarded, MSG_DONTWAIT) > 0) {
            }
        }
    }
}

void load_idle(const struct load *load, unsigned count)
{
    struct rlimit files = {count + 64, count + 64};
    setrlimit(RLIMIT_NOFILE, &files);
    int *fds = calloc(count, sizeof *fds), amqp10 = load->consume1;
    struct address to = load->broker;
    to.old = load->old;
    struct room1 unused;
    for (unsigned i = 0; i < count; i++)
        fds[i] = amqp10 ? amqp1_open(&to, &unused) : amqp_open(&to);
    puts("open");
    fflush(stdout);
    keep_alive(fds, count, load->broker.heartbeat, amqp10);
    for (unsigned i = 0; i < count; i++)
        amqp10 ? amqp1_say_close(fds[i]) : amqp_say_close(fds[i]);
    for (unsigned i = 0; i < count; i++)
        amqp_await_close(fds[i]);
    printf("{\"connections\": %u}\n", count);
}

enum { HOST = 256, PORT, USER, PASSWORD, VHOST, PREFIX, WATCH, PUBLISHERS, CONSUMERS, QUEUES, SIZE, DURABLE, KEEP, WINDOW,
       BATCH, RATE, NO_ACK, PREFETCH, ACK_EVERY, ACK_SINGLE, EXCHANGE, BINDINGS, WARMUP, SECONDS, MESSAGES, MAX_BACKLOG,
       PUBLISH1, CONSUME1, ADDRESS, PROPERTIES, NO_DECLARE, STREAM, OFFSET, OLD, HEARTBEAT, KEYS, CONSUME_RATE,
       HELP };

static const struct option options[] = {
    {"host", 1, 0, HOST}, {"port", 1, 0, PORT}, {"user", 1, 0, USER}, {"password", 1, 0, PASSWORD},
    {"vhost", 1, 0, VHOST}, {"prefix", 1, 0, PREFIX}, {"watch", 1, 0, WATCH}, {"publishers", 1, 0, PUBLISHERS},
    {"consumers", 1, 0, CONSUMERS}, {"queues", 1, 0, QUEUES}, {"size", 1, 0, SIZE}, {"durable", 0, 0, DURABLE},
    {"keep", 0, 0, KEEP}, {"window", 1, 0, WINDOW}, {"batch", 1, 0, BATCH}, {"rate", 1, 0, RATE},
    {"no-ack", 0, 0, NO_ACK}, {"prefetch", 1, 0, PREFETCH}, {"ack-every", 1, 0, ACK_EVERY},
    {"ack-single", 0, 0, ACK_SINGLE}, {"exchange", 1, 0, EXCHANGE}, {"bindings", 1, 0, BINDINGS},
    {"warmup", 1, 0, WARMUP}, {"seconds", 1, 0, SECONDS}, {"messages", 1, 0, MESSAGES}, {"max-backlog", 1, 0, MAX_BACKLOG},
    {"publish-1.0", 0, 0, PUBLISH1}, {"consume-1.0", 0, 0, CONSUME1}, {"address", 1, 0, ADDRESS},
    {"properties", 0, 0, PROPERTIES}, {"no-declare", 0, 0, NO_DECLARE}, {"stream", 0, 0, STREAM},
    {"offset", 1, 0, OFFSET}, {"0-9", 0, 0, OLD}, {"heartbeat", 1, 0, HEARTBEAT}, {"keys", 1, 0, KEYS},
    {"consume-rate", 1, 0, CONSUME_RATE}, {"help", 0, 0, HELP},
    {0, 0, 0, 0},
};

int main(int argc, char **argv)
{
    struct load load = {
        .broker = {.host = "127.0.0.1", .port = 5672, .user = "guest", .password = "guest", .vhost = "/"},
        .publishers = 1, .consumers = 1, .queues = 1, .size = 256, .confirm = 1, .window = 200, .batch = 64,
        .prefetch = 500, .ack_every = 50, .exchange = "", .bindings = 10000, .max_backlog = 50000, .prefix = "bench",
        .warmup = 1, .seconds = 5, .declare = 1, .address = "/amq/queue/", .offset = "next",
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        long number = optarg ? atol(optarg) : 0;
        switch (option) {
        case HOST: load.broker.host = optarg; break;
        case PORT: load.broker.port = (int)number; break;
        case USER: load.broker.user = optarg; break;
        case PASSWORD: load.broker.password = optarg; break;
        case VHOST: load.broker.vhost = optarg; break;
        case PREFIX: load.prefix = optarg; break;
        case WATCH: load.watch = (int)number; break;
        case PUBLISHERS: load.publishers = (int)number; break;
        case CONSUMERS: load.consumers = (int)number; break;
        case QUEUES: load.queues = (int)number; break;
        case SIZE: load.size = (size_t)number; break;
        case DURABLE: load.durable = 1; break;
        case KEEP: load.keep = 1; break;
        case WINDOW: load.window = (unsigned)number; load.confirm = number > 0; break;
        case BATCH: load.batch = (unsigned)number; break;
        case RATE: load.rate = atof(optarg); break;
        case NO_ACK: load.no_ack = 1; break;
        case PREFETCH: load.prefetch = (unsigned)number; break;
        case ACK_EVERY: load.ack_every = (unsigned)number; break;
        case ACK_SINGLE: load.ack_single = 1; break;
        case EXCHANGE: load.exchange = optarg; break;
        case BINDINGS: load.bindings = (unsigned)number; break;
        case WARMUP: load.warmup = atof(optarg); break;
        case SECONDS: load.seconds = atof(optarg); break;
        case MESSAGES: load.messages = (uint64_t)atoll(optarg); break;
        case MAX_BACKLOG: load.max_backlog = (unsigned)number; break;
        case PUBLISH1: load.publish1 = 1; break;
        case CONSUME1: load.consume1 = 1; break;
        case ADDRESS: load.address = optarg; break;
        case PROPERTIES: load.properties = 1; break;
        case NO_DECLARE: load.declare = 0; break;
        case STREAM: load.stream = 1; break;
        case OFFSET: load.offset = optarg; break;
        case OLD: load.old = 1; break;
        case KEYS: load.keys = (unsigned)number; break;
        case HEARTBEAT: load.broker.heartbeat = (unsigned)number; break;
        case CONSUME_RATE: load.consume_rate = atof(optarg); break;
        case HELP: fputs(help, stdout); return 0;
        default: fputs(help, stderr); return 2;
        }
    }
    const char *mode = optind < argc ? argv[optind] : "";
    if (load.size < 16)
        die("--size must be at least 16");
    if (load.queues < 1 || load.ack_every < 1 || load.batch < 1)
        die("--queues, --ack-every and --batch must be at least 1");
    if (load.old && (load.confirm || load.publish1 || load.consume1))
        die("AMQP 0-9 has no confirms, and publishers and consumers that speak it do not speak 1.0");
    if (load.stream && (load.consume1 || load.no_ack || (load.consumers && load.consumers < load.queues)))
        die("streams are read over AMQP 0-9-1, with acks, one per consumer");
    if (((load.publish1 || load.consume1) && *load.exchange) || (load.consume1 && load.consumers < load.queues))
        die("AMQP 1.0 supports only queues, one per consumer");
    if (strcmp(mode, "run") == 0)
        load_run(&load);
    else if (strcmp(mode, "declare") == 0)
        load_declare(&load, (unsigned)load.messages);
    else if (strcmp(mode, "idle") == 0)
        load_idle(&load, (unsigned)load.messages);
    else if (strcmp(mode, "floor") == 0) {
        if (load.rate <= 0)
            die("floor needs --rate");
        load_floor(&load);
    }
    else if (strcmp(mode, "relay") == 0)
        load_relay(&load);
    else {
        fputs(help, stderr);
        return 2;
    }
    return 0;
}
