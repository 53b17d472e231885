#include "amqp1.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* The maximum size of received frames. */
#define FRAME_MAX 131072u
/* Transfers that may arrive before the next flow, which is sent with the next credit. */
#define WINDOW 65535u
#define DATA 0x75

/* Encoding */

static size_t begin_frame(struct buf *b, unsigned type, unsigned descriptor, unsigned fields)
{
    size_t begin = b->len;
    put32(b, 0);
    put8(b, 2);
    put8(b, type);
    put16(b, 0);
    put(b, "\x00\x53", 2);
    put8(b, descriptor);
    put8(b, 0xD0);
    put32(b, 0);
    put32(b, fields);
    return begin;
}

static void end_list(struct buf *b, size_t size_at)
{
    uint32_t size = htonl((uint32_t)(b->len - size_at - 4));
    memcpy(b->data + size_at, &size, 4);
}

static void end_frame(struct buf *b, size_t begin)
{
    uint32_t size = htonl((uint32_t)(b->len - begin));
    memcpy(b->data + begin, &size, 4);
}

/* End the list that `begin_frame` began, and the frame. */
static void end_all(struct buf *b, size_t begin)
{
    end_list(b, begin + 12);
    end_frame(b, begin);
}

static void put_null(struct buf *b) { put8(b, 0x40); }
static void put_bool(struct buf *b, int value) { put8(b, value ? 0x41 : 0x42); }

static void put_uint(struct buf *b, uint32_t value)
{
    put8(b, 0x70);
    put32(b, value);
}

static void put_ubyte(struct buf *b, unsigned value)
{
    put8(b, 0x50);
    put8(b, value);
}

/* A string, symbol or binary, by its format code with a one-byte size. */
static void put_sized(struct buf *b, unsigned code, const void *data, size_t size)
{
    if (size > 255)
        die("a value has %zu bytes", size);
    put8(b, code);
    put8(b, (unsigned)size);
    put(b, data, size);
}

static void put_string(struct buf *b, const char *text) { put_sized(b, 0xA1, text, strlen(text)); }

/* A source or a target with only an address, which may be NULL. */
static void put_terminus(struct buf *b, unsigned descriptor, const char *address)
{
    put(b, "\x00\x53", 2);
    put8(b, descriptor);
    put8(b, 0xD0);
    size_t at = b->len;
    put32(b, 0);
    put32(b, 1);
    if (address)
        put_string(b, address);
    else
        put_null(b);
    end_list(b, at);
}

/* Decoding */

static const uint8_t *skip(const uint8_t *p)
{
    static const uint8_t fixed[] = {0, 1, 2, 4, 8, 16};
    if (*p == 0x00)
        return skip(skip(p + 1));
    unsigned class = *p >> 4;
    if (class >= 4 && class <= 9)
        return p + 1 + fixed[class - 4];
    if (class == 0xA || class == 0xC || class == 0xE)
        return p + 2 + p[1];
    if (class == 0xB || class == 0xD || class == 0xF)
        return p + 5 + get32(p + 1);
    die("an unknown format code 0x%02x", *p);
}

/* The number of an unsigned value; `absent` if it is null. */
static uint32_t number(const uint8_t *p, uint32_t absent)
{
    switch (*p) {
    case 0x40: return absent;
    case 0x43: case 0x44: return 0;
    case 0x50: case 0x52: case 0x53: return p[1];
    case 0x60: return get16(p + 1);
    case 0x70: return get32(p + 1);
    case 0x80: return get32(p + 5);
    default: die("expected a number, not a value of format code 0x%02x", *p);
    }
}

/* Enter the list at `p`: the position of its first field, and their number. */
static const uint8_t *enter(const uint8_t *p, unsigned *count)
{
    *count = *p == 0x45 ? 0 : *p == 0xC0 ? p[2] : *p == 0xD0 ? get32(p + 5) : 0;
    return p + (*p == 0x45 ? 1 : *p == 0xC0 ? 3 : 9);
}

/* The next field, NULL after the last one. */
static const uint8_t *next(struct frame1 *frame)
{
    if (frame->count == 0)
        return NULL;
    const uint8_t *p = frame->field;
    frame->count--;
    frame->field = skip(p);
    return p;
}

static uint32_t next_number(struct frame1 *frame, uint32_t absent)
{
    const uint8_t *p = next(frame);
    return p ? number(p, absent) : absent;
}

struct frame1 read_frame1(const uint8_t *data, size_t size)
{
    struct frame1 frame = {.end = data + size};
    const uint8_t *p = data + 4 * data[4];
    if (p >= frame.end)
        return frame;
    if (*p != 0x00)
        die("a frame without a performative");
    frame.kind = number(p + 1, 0);
    p = skip(p + 1);
    frame.payload = skip(p);
    frame.field = enter(p, &frame.count);
    return frame;
}

void read_flow(struct frame1 *frame, struct room1 *room)
{
    uint32_t next_id = next_number(frame, 0);
    room->window_end = next_id + next_number(frame, 0);
    next(frame);
    next(frame);
    const uint8_t *handle = next(frame);
    if (!handle || *handle == 0x40)
        return;
    uint32_t count = next_number(frame, 0);
    room->credit_end = count + next_number(frame, 0);
}

struct outcome1 read_disposition(struct frame1 *frame)
{
    struct outcome1 found;
    next(frame);
    found.first = next_number(frame, 0);
    found.last = next_number(frame, found.first);
    next(frame);
    const uint8_t *state = next(frame);
    found.accepted = state && *state == 0x00 && number(state + 1, 0) == 0x24;
    return found;
}

uint32_t read_transfer(struct frame1 *frame, const uint8_t **body, size_t *size)
{
    next(frame);
    uint32_t id = next_number(frame, 0);
    next(frame);
    next(frame);
    next(frame);
    const uint8_t *more = next(frame);
    if (more && (*more == 0x41 || (*more == 0x56 && more[1])))
        die("a delivery in several frames");
    for (const uint8_t *p = frame->payload; p < frame->end; p = skip(p)) {
        unsigned section = number(p + 1, 0);
        if (section < DATA)
            continue;
        p = skip(p + 1);
        int wide = *p >> 4 == 0xB;
        if (!wide && *p >> 4 != 0xA)
            break;
        *size = wide ? get32(p + 1) : p[1];
        *body = p + (wide ? 5 : 2);
        return id;
    }
    *size = 0;
    return id;
}

void amqp1_refused(struct frame1 *frame)
{
    const uint8_t *p;
    const char *name = frame->kind == DETACH1 ? "link" : frame->kind == END1 ? "session" : "connection";
    while ((p = next(frame)))
        if (*p == 0x00 && number(p + 1, 0) == 0x1D) {
            unsigned count;
            struct frame1 error = {0};
            error.field = enter(skip(p + 1), &count);
            error.count = count;
            const uint8_t *condition = next(&error), *text = next(&error);
            int wide = text && *text == 0xB1;
            die("the broker ended the %s: %.*s %.*s", name, condition[1], condition + 2,
                !text || *text == 0x40 ? 0 : wide ? (int)get32(text + 1) : text[1], text ? text + (wide ? 5 : 2) : condition);
        }
    die("the broker ended the %s", name);
}

/* Calls that wait */

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

static void send_all(int fd, struct buf *b)
{
    for (size_t done = 0; done < b->len;) {
        ssize_t n = send(fd, b->data + done, b->len - done, MSG_NOSIGNAL);
        if (n < 0)
            die("sending failed: %s", strerror(errno));
        done += (size_t)n;
    }
    b->len = 0;
}

/* Send the buffer, then read frames until one with this performative arrives, which is valid until the next call. */
static struct frame1 call(int fd, struct buf *out, unsigned wanted)
{
    static uint8_t data[FRAME_MAX];
    send_all(fd, out);
    for (;;) {
        read_exactly(fd, data, 8);
        uint32_t size = get32(data);
        if (size < 8 || size > sizeof data)
            die("a frame of %u bytes, or not AMQP 1.0 at all", size);
        read_exactly(fd, data + 8, size - 8);
        struct frame1 frame = read_frame1(data, size);
        if (frame.kind == wanted)
            return frame;
        if (frame.kind >= DETACH1 && frame.kind <= CLOSE1)
            amqp1_refused(&frame);
    }
}

static void expect_header(int fd, struct buf *b, const char *header)
{
    uint8_t answer[8];
    put(b, header, 8);
    send_all(fd, b);
    read_exactly(fd, answer, 8);
    if (memcmp(answer, header, 8) != 0)
        die("the broker does not speak this AMQP 1.0");
}

static void log_in(int fd, struct buf *b, const struct address *to)
{
    char response[512];
    expect_header(fd, b, "AMQP\x03\x01\x00\x00");
    size_t at = begin_frame(b, 1, 0x41, 2);
    put_sized(b, 0xA3, "PLAIN", 5);
    int len = snprintf(response, sizeof response, "%c%s%c%s", 0, to->user, 0, to->password);
    put_sized(b, 0xA0, response, (size_t)len);
    end_all(b, at);
    struct frame1 outcome = call(fd, b, 0x44);
    if (next_number(&outcome, 1) != 0)
        die("the broker refused the password of '%s'", to->user);
    expect_header(fd, b, "AMQP\x00\x01\x00\x00");
}

int amqp1_open(const struct address *to, struct room1 *room)
{
    struct buf b = {0};
    char text[256];
    int fd = amqp_connect(to);
    log_in(fd, &b, to);
    size_t at = begin_frame(&b, 0, OPEN1, 3);
    snprintf(text, sizeof text, "loadgen-%d-%d", (int)getpid(), fd);
    put_string(&b, text);
    snprintf(text, sizeof text, "vhost:%s", to->vhost);
    if (strcmp(to->vhost, "/") != 0)
        put_string(&b, text);
    else
        put_null(&b);
    put_uint(&b, FRAME_MAX);
    end_all(&b, at);
    at = begin_frame(&b, 0, BEGIN1, 4);
    put_null(&b);
    put_uint(&b, 0);
    put_uint(&b, WINDOW);
    put_uint(&b, WINDOW);
    end_all(&b, at);
    struct frame1 begun = call(fd, &b, BEGIN1);
    next(&begun);
    next(&begun);
    room->window_end = next_number(&begun, 0);
    room->credit_end = 0;
    free(b.data);
    return fd;
}

static void attach(int fd, const char *name, int receiver, int settled, const char *source, const char *target)
{
    struct buf b = {0};
    size_t at = begin_frame(&b, 0, ATTACH1, receiver ? 7 : 10);
    put_string(&b, name);
    put_uint(&b, 0);
    put_bool(&b, receiver);
    put_ubyte(&b, settled ? 1 : 0);
    put_ubyte(&b, 0);
    put_terminus(&b, 0x28, source);
    put_terminus(&b, 0x29, target);
    if (!receiver) {
        put_null(&b);
        put_null(&b);
        put_uint(&b, 0);
    }
    end_all(&b, at);
    call(fd, &b, ATTACH1);
    free(b.data);
}

void amqp1_attach_sender(int fd, const char *name, const char *address, int settled)
{
    attach(fd, name, 0, settled, NULL, address);
}

void amqp1_attach_receiver(int fd, const char *name, const char *address, int settled)
{
    attach(fd, name, 1, settled, address, NULL);
}

void amqp1_say_close(int fd)
{
    struct buf b = {0};
    struct timeval patience = {2, 0};
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    end_all(&b, begin_frame(&b, 0, CLOSE1, 0));
    if (send(fd, b.data, b.len, MSG_NOSIGNAL) == (ssize_t)b.len)
        shutdown(fd, SHUT_WR);
    free(b.data);
}

/* Frames that a load sends repeatedly: short lists, as clients write them */

struct places put_transfer(struct buf *b, int settled, int durable, int properties, const uint8_t *body, size_t size)
{
    struct places at = {0};
    size_t begin = b->len;
    put32(b, 0);
    put(b, "\x02\x00\x00\x00\x00\x53\x14\xC0\x0F\x05\x43\x70", 12); /* handle 0, the delivery-id */
    at.id = b->len - begin;
    put32(b, 0);
    put(b, "\xA0\x04", 2);
    at.tag = b->len - begin;
    put32(b, 0);
    put8(b, 0x43); /* the message format */
    put_bool(b, settled);
    if (durable)
        put(b, "\x00\x53\x70\xC0\x02\x01\x41", 7);
    if (properties) {
        size_t list;
        put(b, "\x00\x53\x73\xD0", 4);
        list = b->len;
        put32(b, 0);
        put32(b, 10);
        put(b, "\xA1\x10", 2);
        at.text = b->len - begin;
        put(b, "0000000000000000", ID_SIZE);
        put(b, "\x40\x40\x40\x40\x40", 5);
        put_sized(b, 0xA3, "application/json", 16);
        put(b, "\x40\x40\x83", 3);
        put64(b, 1700000000000);
        end_list(b, list);
        put(b, "\x00\x53\x74\xC1\x1A\x04", 6);
        put_string(b, "tenant");
        put_string(b, "acme");
        put_string(b, "attempt");
        put(b, "\x54\x01", 2);
    }
    put(b, "\x00\x53\x75", 3);
    put8(b, size < 256 ? 0xA0 : 0xB0);
    if (size < 256)
        put8(b, (unsigned)size);
    else
        put32(b, (uint32_t)size);
    at.body = b->len - begin;
    put(b, body, size);
    end_frame(b, begin);
    return at;
}

void put_accepted(struct buf *b, uint32_t first, uint32_t last)
{
    size_t begin = b->len;
    put32(b, 0);
    put(b, "\x02\x00\x00\x00\x00\x53\x15\xC0\x11\x05\x41", 11); /* role receiver */
    put_uint(b, first);
    put_uint(b, last);
    put_bool(b, 1);
    put(b, "\x00\x53\x24\x45", 4);
    end_frame(b, begin);
}

void put_credit(struct buf *b, uint32_t came, uint32_t credit)
{
    size_t begin = b->len;
    put32(b, 0);
    put(b, "\x02\x00\x00\x00\x00\x53\x13\xC0\x21\x07", 10);
    put_uint(b, came);
    put_uint(b, WINDOW);
    put_uint(b, 0);
    put_uint(b, WINDOW);
    put8(b, 0x52);
    put8(b, 0);
    put_uint(b, came);
    put_uint(b, credit);
    end_frame(b, begin);
}
