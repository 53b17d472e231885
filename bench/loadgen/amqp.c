#include "amqp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The maximum frame size of this program. */
#define FRAME_MAX 131072u
#define END 0xCE

void die(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

void buf_reserve(struct buf *b, size_t more)
{
    if (b->len + more <= b->cap)
        return;
    size_t cap = b->cap ? b->cap : 4096;
    while (cap < b->len + more)
        cap *= 2;
    b->data = realloc(b->data, cap);
    if (!b->data)
        die("out of memory");
    b->cap = cap;
}

void put(struct buf *b, const void *data, size_t len)
{
    buf_reserve(b, len);
    memcpy(b->data + b->len, data, len);
    b->len += len;
}

void put8(struct buf *b, unsigned v)
{
    uint8_t octet = (uint8_t)v;
    put(b, &octet, 1);
}

void put16(struct buf *b, unsigned v)
{
    put8(b, v >> 8);
    put8(b, v);
}

void put32(struct buf *b, uint32_t v)
{
    put16(b, v >> 16);
    put16(b, v & 0xFFFF);
}

void put64(struct buf *b, uint64_t v)
{
    put32(b, (uint32_t)(v >> 32));
    put32(b, (uint32_t)v);
}

void put_str(struct buf *b, const char *s)
{
    size_t len = strlen(s);
    if (len > 255)
        die("a short string has %zu bytes", len);
    put8(b, (unsigned)len);
    put(b, s, len);
}

static void put_long_str(struct buf *b, const void *data, size_t len)
{
    put32(b, (uint32_t)len);
    put(b, data, len);
}

static size_t frame_begin(struct buf *b, unsigned type, unsigned channel)
{
    put8(b, type);
    put16(b, channel);
    put32(b, 0);
    return b->len;
}

void method_end(struct buf *b, size_t begin)
{
    uint32_t size = htonl((uint32_t)(b->len - begin));
    memcpy(b->data + begin - 4, &size, 4);
    put8(b, END);
}

size_t method_begin(struct buf *b, unsigned channel, unsigned class_id, unsigned method_id)
{
    size_t begin = frame_begin(b, 1, channel);
    put16(b, class_id);
    put16(b, method_id);
    return begin;
}

static void send_all(int fd, struct buf *b)
{
    size_t done = 0;
    while (done < b->len) {
        ssize_t n = send(fd, b->data + done, b->len - done, MSG_NOSIGNAL);
        if (n < 0)
            die("sending failed: %s", strerror(errno));
        done += (size_t)n;
    }
    b->len = 0;
}

static void read_exactly(int fd, uint8_t *to, size_t len)
{
    while (len > 0) {
        ssize_t n = recv(fd, to, len, 0);
        if (n <= 0)
            die("the broker closed the connection%s%s", n < 0 ? ": " : "", n < 0 ? strerror(errno) : "");
        to += n;
        len -= (size_t)n;
    }
}

void amqp_refused(const uint8_t *payload)
{
    die("the broker refused: %u %.*s", get16(payload + 4), payload[6], payload + 7);
}

void amqp_call(int fd, struct buf *out, uint32_t wanted, const uint8_t **payload)
{
    static uint8_t frame[FRAME_MAX];
    send_all(fd, out);
    for (;;) {
        read_exactly(fd, frame, 7);
        uint32_t size = get32(frame + 3);
        unsigned type = frame[0];
        if (size + 1 > sizeof frame)
            die("a frame of %u bytes, or not AMQP 0-9-1 or 0-9 at all", size);
        read_exactly(fd, frame, size + 1);
        if (frame[size] != END)
            die("a frame without its end");
        if (type != 1)
            continue;
        uint32_t method = get32(frame);
        if (method == METHOD(10, 50) || method == METHOD(20, 40))
            amqp_refused(frame);
        if (method == wanted) {
            if (payload)
                *payload = frame;
            return;
        }
    }
}

int amqp_connect(const struct address *to)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)to->port)};
    if (inet_pton(AF_INET, to->host, &address.sin_addr) != 1)
        die("not an IPv4 address: %s", to->host);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        die("cannot connect to %s:%d: %s", to->host, to->port, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    /* Some congestion controls pace what is sent, even on the loopback interface. */
    setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    return fd;
}

int amqp_open(const struct address *to)
{
    int fd = amqp_connect(to);
    struct buf b = {0};
    const uint8_t *tune;
    char response[512];
    put(&b, to->old ? "AMQP\x01\x01\0\x09" : "AMQP\0\0\x09\x01", 8);
    amqp_call(fd, &b, METHOD(10, 10), NULL);
    size_t at = method_begin(&b, 0, 10, 11);
    put32(&b, 0); /* no client properties, so the broker sends no notifications */
    put_str(&b, "PLAIN");
    int len = snprintf(response, sizeof response, "%c%s%c%s", 0, to->user, 0, to->password);
    put_long_str(&b, response, (size_t)len);
    put_str(&b, "en_US");
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(10, 30), &tune);
    unsigned channel_max = get16(tune + 4);
    uint32_t frame_max = get32(tune + 6);
    at = method_begin(&b, 0, 10, 31);
    put16(&b, channel_max);
    put32(&b, frame_max && frame_max < FRAME_MAX ? frame_max : FRAME_MAX);
    put16(&b, to->heartbeat);
    method_end(&b, at);
    at = method_begin(&b, 0, 10, 40);
    put_str(&b, to->vhost);
    put_str(&b, "");
    put8(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(10, 41), NULL);
    at = method_begin(&b, 1, 20, 10);
    put_str(&b, "");
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(20, 11), NULL);
    free(b.data);
    return fd;
}

void amqp_say_close(int fd)
{
    struct buf b = {0};
    struct timeval patience = {2, 0};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    size_t at = method_begin(&b, 0, 10, 50);
    put16(&b, 200);
    put_str(&b, "");
    put32(&b, 0);
    method_end(&b, at);
    if (send(fd, b.data, b.len, MSG_NOSIGNAL) == (ssize_t)b.len)
        shutdown(fd, SHUT_WR);
    free(b.data);
}

void amqp_await_close(int fd)
{
    static uint8_t rest[65536];
    while (recv(fd, rest, sizeof rest, 0) > 0) {
    }
    close(fd);
}

/* A table with one string, or an empty one. */
static void put_argument(struct buf *b, const char *name, const char *value)
{
    if (!value) {
        put32(b, 0);
        return;
    }
    put32(b, (uint32_t)(1 + strlen(name) + 5 + strlen(value)));
    put_str(b, name);
    put8(b, 'S');
    put32(b, (uint32_t)strlen(value));
    put(b, value, strlen(value));
}

void amqp_declare_queue(int fd, const char *name, int durable, int stream)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 50, 10);
    put16(&b, 0);
    put_str(&b, name);
    put8(&b, durable || stream ? 2 : 0);
    put_argument(&b, "x-queue-type", stream ? "stream" : NULL);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(50, 11), NULL);
}

void amqp_delete_queue(int fd, const char *name)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 50, 40);
    put16(&b, 0);
    put_str(&b, name);
    put8(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(50, 41), NULL);
}

void amqp_declare_exchange(int fd, const char *name, const char *type)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 40, 10);
    put16(&b, 0);
    put_str(&b, name);
    put_str(&b, type);
    put8(&b, 0);
    put32(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(40, 11), NULL);
}

void amqp_delete_exchange(int fd, const char *name)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 40, 20);
    put16(&b, 0);
    put_str(&b, name);
    put8(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(40, 21), NULL);
}

void amqp_bind(int fd, const char *queue, const char *exchange, const char *key)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 50, 20);
    put16(&b, 0);
    put_str(&b, queue);
    put_str(&b, exchange);
    put_str(&b, key);
    put8(&b, 0);
    put32(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(50, 21), NULL);
}

void amqp_qos(int fd, unsigned prefetch)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 60, 10);
    put32(&b, 0);
    put16(&b, prefetch);
    put8(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(60, 11), NULL);
}

void amqp_consume(int fd, const char *queue, int no_ack, const char *offset)
{
    /* Do not wait: deliveries may arrive before the reply, and only the event loop reads them. */
    static struct buf b;
    size_t at = method_begin(&b, 1, 60, 20);
    put16(&b, 0);
    put_str(&b, queue);
    put_str(&b, queue);
    put8(&b, (no_ack ? 2u : 0u) | 8u);
    put_argument(&b, "x-stream-offset", offset);
    method_end(&b, at);
    send_all(fd, &b);
}

void amqp_confirm_select(int fd)
{
    static struct buf b;
    size_t at = method_begin(&b, 1, 85, 10);
    put8(&b, 0);
    method_end(&b, at);
    amqp_call(fd, &b, METHOD(85, 11), NULL);
}

struct places put_publish(struct buf *b, const char *exchange, const char *key, int persistent, int properties,
                          const uint8_t *body, size_t size)
{
    struct places places = {0};
    size_t start = b->len, at = method_begin(b, 1, 60, 40);
    put16(b, 0);
    put_str(b, exchange);
    put_str(b, key);
    put8(b, 0);
    method_end(b, at);
    at = frame_begin(b, 2, 1);
    put16(b, 60);
    put16(b, 0);
    put64(b, size);
    put16(b, properties ? 0xB0C0 : 0x1000); /* delivery-mode is the one that is always there */
    if (properties) {
        put_str(b, "application/json");
        put_long_str(b, "\x06tenantS\x00\x00\x00\x04" "acme\x07" "attemptI\x00\x00\x00\x01", 29);
    }
    put8(b, persistent ? 2 : 1);
    if (properties) {
        put8(b, ID_SIZE);
        places.text = b->len - start;
        put(b, "0000000000000000", ID_SIZE);
        put64(b, 1700000000);
    }
    method_end(b, at);
    places.body = b->len + 7 - start;
    for (size_t done = 0; done < size;) {
        size_t part = size - done < FRAME_MAX - 8 ? size - done : FRAME_MAX - 8;
        at = frame_begin(b, 3, 1);
        put(b, body + done, part);
        method_end(b, at);
        done += part;
    }
    return places;
}

void put_ack(struct buf *b, uint64_t tag, int multiple)
{
    size_t at = method_begin(b, 1, 60, 80);
    put64(b, tag);
    put8(b, multiple ? 1 : 0);
    method_end(b, at);
}
