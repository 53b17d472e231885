/* The event loop: publishers and consumers on non-blocking sockets, in one thread. Publishes are encoded in advance and
   copied; of the input, only deliveries, acks and the first bytes of bodies are parsed. */
#include "amqp1.h"
#include "load.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define INPUT (256 * 1024)
/* Bytes that a consumer with a rate reads at a time. */
#define SLOW_INPUT (4 * 1024)

/* An encoded publish, without the parts that differ between messages. */
struct template {
    size_t at, len;
    struct places in;
};

struct connection {
    int fd, publisher, writing;
    int one;                         /* AMQP 1.0 */
    struct room1 room;
    uint8_t *in;
    size_t in_len;
    struct buf out;
    size_t out_done;
    /* publisher */
    struct template *templates;
    unsigned template_count, template_next;
    uint64_t published, low;         /* the lowest tag that is not confirmed */
    unsigned in_flight;
    uint64_t *sent;                  /* by tag modulo the ring: when it was sent, 0 once confirmed */
    /* consumer; over 1.0 delivery-ids are counted from 0, and credit is renewed when half of it is used */
    uint64_t tag, body_left;
    uint32_t came, credit_end;
    uint64_t taken;                  /* deliveries so far */
    int slowed;                      /* not read until more deliveries are due */
    unsigned waiting;                /* deliveries since the last ack */
    uint64_t *tags;                  /* of them, where they are acked singly */
    int in_body;
};

struct counts {
    uint64_t published, confirmed, nacked, delivered;
};

static const struct load *load;
static struct buf templates;
static struct counts counts;
static struct hist delivery, confirms;
static uint64_t now, started, ring;
static int poller, held;
static uint64_t random_state = 88172645463325252ull;

static volatile sig_atomic_t stopping;

static void stop(int number)
{
    (void)number;
    stopping = 1;
}

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void watch(struct connection *c)
{
    uint32_t reading = c->slowed ? 0 : EPOLLIN, writing = c->writing ? EPOLLOUT : 0;
    struct epoll_event event = {.events = reading | writing, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event);
}

static void want_write(struct connection *c, int on)
{
    if (c->writing == on)
        return;
    c->writing = on;
    watch(c);
}

/* Stop reading a consumer that is ahead of its rate, or resume. */
static void keep_rate(struct connection *c)
{
    int ahead = (double)c->taken > (double)(now - started) * 1e-9 * load->consume_rate;
    if (c->slowed == ahead)
        return;
    c->slowed = ahead;
    watch(c);
}

/* Send pending data; 1 if all was sent. */
static int flush(struct connection *c)
{
    while (c->out_done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->out_done, c->out.len - c->out_done, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK)
                die("sending failed: %s", strerror(errno));
            want_write(c, 1);
            return 0;
        }
        c->out_done += (size_t)n;
    }
    c->out.len = c->out_done = 0;
    return 1;
}

/* Undelivered messages in all queues together. */
static int64_t backlog(void)
{
    uint64_t copies = strcmp(load->exchange, "fanout") == 0 ? (uint64_t)load->queues
                      : load->stream                        ? (uint64_t)(load->consumers / load->queues)
                                                            : 1;
    return (int64_t)(counts.published * copies) - (int64_t)counts.delivered;
}

/* The due time of publish number n (from 1) of each publisher, in whole nanoseconds, so that it is due on wake-up. */
static uint64_t due_at(uint64_t n)
{
    return started + (uint64_t)((double)n * 1e9 * load->publishers / load->rate);
}

/* Publishes that are due by now. */
static uint64_t due_by_now(void)
{
    uint64_t n = (uint64_t)((double)(now - started) * 1e-9 * load->rate / load->publishers);
    return due_at(n + 1) <= now ? n + 1 : n;
}

/* Wake up when the next publish is due, at most fifty thousand times per second. */
static void arm(int ticks)
{
    now = now_ns();
    uint64_t at = due_at(due_by_now() + 1);
    if (at < now + 20000)
        at = due_at((uint64_t)((double)(now + 20000 - started) * 1e-9 * load->rate / load->publishers) + 1);
    struct itimerspec spec = {{0, 0}, {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};
    timerfd_settime(ticks, TFD_TIMER_ABSTIME, &spec, NULL);
}

/* Publishes that may be sent now, regardless of the window. */
static uint64_t due(const struct connection *c)
{
    uint64_t share = load->messages ? load->messages / (unsigned)load->publishers : UINT64_MAX;
    if (load->rate > 0) {
        uint64_t until = due_by_now();
        if (until < share)
            share = until;
    }
    return share > c->published ? share - c->published : 0;
}

/* Over 1.0: transfers that have credit. */
static uint64_t room_of(const struct connection *c)
{
    int32_t credit = (int32_t)(c->room.credit_end - (uint32_t)c->published);
    int32_t window = (int32_t)(c->room.window_end - (uint32_t)c->published);
    int32_t room = credit < window ? credit : window;
    return room > 0 ? (uint64_t)room : 0;
}

static void publish(struct connection *c)
{
    /* A few rounds at most, so that a publisher without confirms does not starve the consumers. */
    for (int round = 0; round < 4; round++) {
        if (c->out.len && !flush(c))
            return;
        uint64_t n = due(c);
        if (load->confirm && n > load->window - c->in_flight)
            n = load->window - c->in_flight;
        if (n > load->batch)
            n = load->batch;
        if (c->one && n > room_of(c))
            n = room_of(c);
        if (n > 0 && load->consumers && load->max_backlog && backlog() > (int64_t)load->max_backlog) {
            held = 1;
            n = 0;
        }
        if (n == 0) {
            want_write(c, 0);
            return;
        }
        now = now_ns();
        for (uint64_t i = 0; i < n; i++) {
            struct template *t = &c->templates[c->template_next];
            if (++c->template_next == c->template_count)
                c->template_next = 0;
            uint64_t when = now;
            if (load->rate > 0) /* when it was to be sent: a generator that is late must not make the broker look good */
                when = due_at(c->published + 1);
            buf_reserve(&c->out, t->len);
            uint8_t *to = c->out.data + c->out.len;
            memcpy(to, templates.data + t->at, t->len);
            set64(to + t->in.body, when);
            set64(to + t->in.body + 8, c->published);
            if (c->one) {
                set32(to + t->in.id, (uint32_t)c->published);
                set32(to + t->in.tag, (uint32_t)c->published);
            }
            if (t->in.text)
                for (unsigned digit = 0; digit < ID_SIZE; digit++)
                    to[t->in.text + digit] = (uint8_t)"0123456789abcdef"[c->published >> 4 * (ID_SIZE - 1 - digit) & 15];
            c->out.len += t->len;
            c->published++;
            if (load->confirm)
                c->sent[c->published % ring] = when;
        }
        counts.published += n;
        if (load->confirm)
            c->in_flight += (unsigned)n;
    }
    if (!flush(c))
        return;
    if (!load->confirm && load->rate == 0 && !held && due(c))
        want_write(c, 1); /* there is always more to send */
}

static void confirm_one(struct connection *c, uint64_t tag, int nack)
{
    uint64_t when = c->sent[tag % ring];
    if (!when)
        return;
    c->sent[tag % ring] = 0;
    c->in_flight--;
    counts.confirmed++;
    counts.nacked += (unsigned)nack;
    hist_add(&confirms, now > when ? now - when : 0);
}

static void confirmed(struct connection *c, uint64_t tag, int multiple, int nack)
{
    if (tag == 0 && multiple)
        tag = c->published;
    if (tag > c->published || tag + ring <= c->published)
        die("a confirm for delivery tag %llu, which is not in flight", (unsigned long long)tag);
    if (multiple)
        for (; c->low <= tag; c->low++)
            confirm_one(c, c->low, nack);
    else
        confirm_one(c, tag, nack);
    while (c->low <= c->published && !c->sent[c->low % ring])
        c->low++;
}

/* Handle the outcome of the deliveries from first to last, counted from 1. */
static void outcome(struct connection *c, uint64_t first, uint64_t last, int nack)
{
    if (last > c->published || first + ring <= c->published)
        die("an outcome of delivery %llu, which is not in flight", (unsigned long long)(last - 1));
    for (uint64_t tag = first; tag <= last; tag++)
        confirm_one(c, tag, nack);
    while (c->low <= c->published && !c->sent[c->low % ring])
        c->low++;
}

static void ack(struct connection *c, uint64_t tag, unsigned count)
{
    if (c->one)
        put_accepted(&c->out, (uint32_t)tag - (count - 1), (uint32_t)tag);
    else
        put_ack(&c->out, tag, count > 1);
}

static void settle(struct connection *c)
{
    if (c->one && (int32_t)(c->credit_end - c->came) <= (int32_t)load->prefetch / 2) {
        put_credit(&c->out, c->came, load->prefetch);
        c->credit_end = c->came + load->prefetch;
    }
    if (load->no_ack)
        return;
    if (load->ack_single)
        c->tags[c->waiting] = c->tag;
    if (++c->waiting < load->ack_every)
        return;
    if (!load->ack_single)
        ack(c, c->tag, c->waiting);
    else
        for (unsigned left = c->waiting; left > 0; left--) {
            unsigned pick = (unsigned)(next_random() % left);
            ack(c, c->tags[pick], 1);
            c->tags[pick] = c->tags[left - 1];
        }
    c->waiting = 0;
}

static void delivered(struct connection *c)
{
    counts.delivered++;
    c->taken++;
    settle(c);
}

static void frame(struct connection *c, unsigned type, const uint8_t *payload, uint32_t size)
{
    if (type == 3) {
        if (!c->in_body && size >= 16) {
            uint64_t when = get64(payload);
            hist_add(&delivery, now > when ? now - when : 0);
        }
        c->in_body = 1;
        if (size > c->body_left)
            die("a body that is longer than announced");
        c->body_left -= size;
        if (c->body_left == 0)
            delivered(c);
    } else if (type == 2) {
        c->body_left = get64(payload + 4);
        c->in_body = 0;
        if (c->body_left == 0)
            delivered(c);
    } else if (type == 1) {
        uint32_t method = get32(payload);
        if (method == METHOD(60, 60))
            c->tag = get64(payload + 5 + payload[4]);
        else if (method == METHOD(60, 80))
            confirmed(c, get64(payload + 4), payload[12] & 1, 0);
        else if (method == METHOD(60, 120))
            confirmed(c, get64(payload + 4), payload[12] & 1, 1);
        else if (method == METHOD(10, 50) || method == METHOD(20, 40))
            amqp_refused(payload);
        else if (method != METHOD(60, 21) && method != METHOD(20, 20))
            die("unexpected method %u.%u", method >> 16, method & 0xFFFF);
    }
}

static void frame1(struct connection *c, const uint8_t *data, uint32_t size)
{
    struct frame1 f = read_frame1(data, size);
    if (f.kind == TRANSFER1) {
        const uint8_t *body;
        size_t octets;
        c->tag = read_transfer(&f, &body, &octets);
        if (octets >= 16) {
            uint64_t when = get64(body);
            hist_add(&delivery, now > when ? now - when : 0);
        }
        c->came++;
        delivered(c);
    } else if (f.kind == DISPOSITION1) {
        struct outcome1 o = read_disposition(&f);
        if (load->confirm)
            outcome(c, (uint64_t)o.first + 1, (uint64_t)o.last + 1, !o.accepted);
    } else if (f.kind == FLOW1) {
        if (c->publisher)
            read_flow(&f, &c->room);
    } else if (f.kind)
        amqp1_refused(&f);
}

static size_t frames1(struct connection *c)
{
    size_t at = 0;
    while (c->in_len - at >= 8) {
        uint32_t size = get32(c->in + at);
        if (size > INPUT || size < 8)
            die("a frame of %u bytes", size);
        if (c->in_len - at < size)
            break;
        frame1(c, c->in + at, size);
        at += size;
    }
    return at;
}

static size_t frames(struct connection *c)
{
    size_t at = 0;
    while (c->in_len - at >= 8) {
        uint32_t size = get32(c->in + at + 3);
        if (size + 8 > INPUT)
            die("a frame of %u bytes", size);
        if (c->in_len - at < size + 8)
            break;
        if (c->in[at + 7 + size] != 0xCE)
            die("a frame without its end");
        frame(c, c->in[at], c->in + at + 7, size);
        at += size + 8;
    }
    return at;
}

static void readable(struct connection *c)
{
    size_t room = INPUT - c->in_len;
    if (load->consume_rate > 0 && !c->publisher && room > SLOW_INPUT)
        room = SLOW_INPUT;
    ssize_t n = recv(c->fd, c->in + c->in_len, room, 0);
    if (n <= 0) {
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        die("the broker closed the connection");
    }
    now = now_ns();
    c->in_len += (size_t)n;
    size_t at = c->one ? frames1(c) : frames(c);
    c->in_len -= at;
    if (at && c->in_len)
        memmove(c->in, c->in + at, c->in_len);
    if (c->publisher)
        publish(c);
    else if (c->out.len && flush(c))
        want_write(c, 0);
}

static const char *queue_name(int queue)
{
    static char name[256];
    snprintf(name, sizeof name, "%s-%d", load->prefix, queue);
    return name;
}

/* Binding keys of three kinds in turn; routing key i matches binding i and no other. */
static void topic_keys(unsigned i, char *binding, char *key, size_t size)
{
    const char *form[] = {"site.%u.sensor.reading", "site.%u.*.reading", "site.%u.#"};
    snprintf(binding, size, form[i % 3], i);
    snprintf(key, size, "site.%u.sensor.reading", i);
}

static void declare(int fd, char *exchange, size_t size)
{
    for (int i = 0; i < load->queues; i++) {
        if (!load->keep)
            amqp_delete_queue(fd, queue_name(i));
        amqp_declare_queue(fd, queue_name(i), load->durable, load->stream);
    }
    if (!*load->exchange)
        return;
    snprintf(exchange, size, "%s-x", load->prefix);
    amqp_delete_exchange(fd, exchange);
    amqp_declare_exchange(fd, exchange, load->exchange);
    if (strcmp(load->exchange, "topic") != 0)
        for (int i = 0; i < load->queues; i++)
            amqp_bind(fd, queue_name(i), exchange, "");
    else
        for (unsigned i = 0; i < load->bindings; i++) {
            char binding[64], key[64];
            topic_keys(i, binding, key, sizeof key);
            amqp_bind(fd, queue_name((int)(i % (unsigned)load->queues)), exchange, binding);
        }
}

static void encode(struct connection *c, int number, const char *exchange, const uint8_t *body)
{
    int topic = strcmp(load->exchange, "topic") == 0;
    c->template_count = !topic ? 1 : load->keys && load->keys < load->bindings ? load->keys : load->bindings;
    c->templates = calloc(c->template_count, sizeof *c->templates);
    for (unsigned i = 0; i < c->template_count; i++) {
        struct template *t = &c->templates[i];
        char binding[64], key[64] = "";
        if (topic)
            topic_keys(i * (load->bindings / c->template_count), binding, key, sizeof key);
        t->at = templates.len;
        if (c->one)
            t->in = put_transfer(&templates, !load->confirm, load->durable, load->properties, body, load->size);
        else
            t->in = put_publish(&templates, exchange, *exchange ? key : queue_name(number % load->queues), load->durable,
                                load->properties, body, load->size);
        t->len = templates.len - t->at;
    }
    /* In another order than the bindings. */
    for (unsigned i = c->template_count - 1; i > 0; i--) {
        unsigned j = (unsigned)(next_random() % (i + 1));
        struct template t = c->templates[i];
        c->templates[i] = c->templates[j];
        c->templates[j] = t;
    }
}

static const char *queue_address(int queue)
{
    static char address[512];
    snprintf(address, sizeof address, "%s%s", load->address, queue_name(queue));
    return address;
}

static void start_publisher(struct connection *c, int number)
{
    struct address to = load->broker;
    to.old = load->old;
    c->publisher = 1;
    c->one = load->publish1;
    c->low = 1;
    c->sent = calloc(ring, sizeof *c->sent);
    if (c->one) {
        c->fd = amqp1_open(&load->broker, &c->room);
        amqp1_attach_sender(c->fd, "bench-out", queue_address(number % load->queues), !load->confirm);
        return;
    }
    c->fd = amqp_open(&to);
    if (load->confirm)
        amqp_confirm_select(c->fd);
}

static void start_consumer(struct connection *c, int number)
{
    struct address to = load->broker;
    to.old = load->old;
    c->one = load->consume1;
    c->tags = calloc(load->ack_every + 1, sizeof *c->tags);
    if (c->one) {
        c->fd = amqp1_open(&load->broker, &c->room);
        amqp1_attach_receiver(c->fd, "bench-in", queue_address(number % load->queues), load->no_ack);
        put_credit(&c->out, 0, load->prefetch);
        c->credit_end = load->prefetch;
        return;
    }
    c->fd = amqp_open(&to);
    amqp_qos(c->fd, load->prefetch);
    /* More consumers than queues share them; fewer consume from several each. */
    for (int queue = number % load->queues; queue < load->queues; queue += load->consumers)
        amqp_consume(c->fd, queue_name(queue), load->no_ack, load->stream ? load->offset : NULL);
}

static void add(struct connection *c)
{
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->in = malloc(INPUT);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event);
}

static void report(double seconds, const struct counts *from, const struct usage *mine, const struct usage *theirs)
{
    struct usage me = usage_of(0), broker = usage_of(load->watch ? load->watch : -1);
    printf("{\"seconds\": %.3f, \"published\": %llu, \"confirmed\": %llu, \"nacked\": %llu, \"delivered\": %llu, "
           "\"backlog\": %lld, \"generator_cpu\": %.2f, \"broker_cpu\": %.2f, \"broker_rss_kb\": %ld, "
           "\"broker_peak_kb\": %ld, \"latency_us\": ",
           seconds, (unsigned long long)(counts.published - from->published),
           (unsigned long long)(counts.confirmed - from->confirmed), (unsigned long long)(counts.nacked - from->nacked),
           (unsigned long long)(counts.delivered - from->delivered),
           (long long)backlog(), me.cpu - mine->cpu, broker.cpu - theirs->cpu,
           broker.rss_kb, broker.peak_kb);
    hist_json(&delivery, stdout);
    printf(", \"confirm_us\": ");
    hist_json(&confirms, stdout);
    printf("}\n");
}

/* Send the rest of a partly sent frame, reading meanwhile, for two seconds at most. */
static void finish(struct connection *c)
{
    for (uint64_t until = now_ns() + 2000000000u; c->out.len && now_ns() < until && !flush(c);) {
        struct pollfd wait = {.fd = c->fd, .events = POLLIN | POLLOUT};
        poll(&wait, 1, 100);
        if (wait.revents & POLLIN && recv(c->fd, c->in, INPUT, 0) <= 0)
            return;
    }
}

static int finished(void)
{
    if (!load->messages)
        return 0;
    if (!load->publishers)
        return counts.delivered >= load->messages;
    return counts.published >= load->messages / (unsigned)load->publishers * (unsigned)load->publishers &&
           (!load->confirm || counts.confirmed >= counts.published) &&
           (!load->consumers || backlog() <= 0);
}

void load_run(const struct load *what)
{
    char exchange[128];
    load = what;
    poller = epoll_create1(0);
    int control = load->declare ? amqp_open(&load->broker) : -1;
    exchange[0] = 0;
    if (load->declare)
        declare(control, exchange, sizeof exchange);

    uint8_t *body = malloc(load->size);
    for (size_t i = 0; i < load->size; i++)
        body[i] = (uint8_t)('a' + i % 26);
    for (ring = 1; ring < 2 * (uint64_t)load->window + 2;)
        ring *= 2;
    int total = load->publishers + load->consumers;
    struct connection *all = calloc((size_t)total, sizeof *all);
    for (int i = 0; i < load->publishers; i++) {
        struct connection *c = &all[i];
        start_publisher(c, i);
        encode(c, i, exchange, body);
        add(c);
    }
    for (int i = 0; i < load->consumers; i++) {
        struct connection *c = &all[load->publishers + i];
        start_consumer(c, i);
        add(c);
        if (c->out.len)
            flush(c);
    }

    signal(SIGTERM, stop);
    int ticks = -1;
    if (load->rate > 0) {
        ticks = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        epoll_ctl(poller, EPOLL_CTL_ADD, ticks, &event);
    }

    now = started = now_ns();
    if (ticks >= 0)
        arm(ticks);
    uint64_t begin = started + (uint64_t)(load->messages ? 0 : load->warmup * 1e9);
    uint64_t end = load->messages ? UINT64_MAX : begin + (uint64_t)(load->seconds * 1e9);
    int measuring = 0;
    struct counts from = {0};
    struct usage mine = usage_of(0), theirs = usage_of(load->watch ? load->watch : -1);
    for (int i = 0; i < load->publishers; i++)
        publish(&all[i]);
    struct epoll_event events[128];
    for (;;) {
        int n = epoll_wait(poller, events, 128, load->consume_rate > 0 ? 1 : 100);
        now = now_ns();
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (c == NULL) {
                uint64_t expirations;
                if (read(ticks, &expirations, sizeof expirations) > 0) {
                    for (int p = 0; p < load->publishers; p++)
                        publish(&all[p]);
                    arm(ticks);
                }
                continue;
            }
            if (events[i].events & EPOLLOUT) {
                if (c->publisher)
                    publish(c);
                else if (flush(c))
                    want_write(c, 0);
            }
            if (events[i].events & ~(uint32_t)EPOLLOUT)
                readable(c);
        }
        if (load->consume_rate > 0)
            for (int i = 0; i < load->consumers; i++)
                keep_rate(&all[load->publishers + i]);
        if (held && backlog() <= (int64_t)load->max_backlog / 2) {
            held = 0;
            for (int p = 0; p < load->publishers; p++)
                publish(&all[p]);
        }
        if (!measuring && now >= begin) {
            measuring = 1;
            if (!load->messages) {
                begin = now;
                from = counts;
            }
            mine = usage_of(0);
            theirs = usage_of(load->watch ? load->watch : -1);
            hist_reset(&delivery);
            hist_reset(&confirms);
        }
        if (measuring && (now >= end || stopping || finished()))
            break;
    }
    report((double)(now - begin) * 1e-9, &from, &mine, &theirs);
    fflush(stdout);
    for (int i = 0; i < total; i++) {
        finish(&all[i]);
        if (all[i].one)
            amqp1_say_close(all[i].fd);
        else
            amqp_say_close(all[i].fd);
    }
    for (int i = 0; i < total; i++)
        amqp_await_close(all[i].fd);
    if (control < 0)
        return;
    if (!load->keep)
        for (int i = 0; i < load->queues; i++)
            amqp_delete_queue(control, queue_name(i));
    if (*exchange)
        amqp_delete_exchange(control, exchange);
    amqp_say_close(control);
    amqp_await_close(control);
}
