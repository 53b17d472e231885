/* The parts of AMQP 0-9-1 and 0-9 that a load generator needs: encoding of frames, a handshake, and calls that wait. */
#ifndef AMQP_H
#define AMQP_H

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data;
    size_t len, cap;
};

void buf_reserve(struct buf *b, size_t more);
void put(struct buf *b, const void *data, size_t len);
void put8(struct buf *b, unsigned v);
void put16(struct buf *b, unsigned v);
void put32(struct buf *b, uint32_t v);
void put64(struct buf *b, uint64_t v);
void put_str(struct buf *b, const char *s);

/* A method frame: begin, put the arguments, end. */
size_t method_begin(struct buf *b, unsigned channel, unsigned class_id, unsigned method_id);
void method_end(struct buf *b, size_t begin);

static inline unsigned get16(const uint8_t *p) { return (unsigned)p[0] << 8 | p[1]; }
static inline uint32_t get32(const uint8_t *p) { return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3]; }
static inline uint64_t get64(const uint8_t *p) { return (uint64_t)get32(p) << 32 | get32(p + 4); }
static inline void set32(uint8_t *p, uint32_t v)
{
    v = __builtin_bswap32(v);
    __builtin_memcpy(p, &v, 4);
}
static inline void set64(uint8_t *p, uint64_t v)
{
    v = __builtin_bswap64(v);
    __builtin_memcpy(p, &v, 8);
}

#define METHOD(class_id, method_id) ((uint32_t)(class_id) << 16 | (uint32_t)(method_id))

struct address {
    const char *host, *user, *password, *vhost;
    int port;
    int old; /* AMQP 0-9: another header, and what follows has the same encoding here */
    unsigned heartbeat; /* seconds between heartbeats, as negotiated; 0 for none */
};

/* Connect, with TCP_NODELAY and without pacing. Exits on failure. */
int amqp_connect(const struct address *to);
/* Connect, log in, open the vhost and channel 1; the socket is still blocking. Exits on failure. */
int amqp_open(const struct address *to);
/* Send and empty the buffer, then read frames until this method arrives. Exits if the peer closes. `payload`, if not
   NULL, is set to the method's payload, which is valid until the next call. */
void amqp_call(int fd, struct buf *out, uint32_t wanted, const uint8_t **payload);

/* Send a close, and wait for the reply: two steps, so that many connections can be closed concurrently. No frame may be
   partly sent. */
void amqp_say_close(int fd);
void amqp_await_close(int fd);

/* queue.declare, exchange.declare, queue.bind, basic.qos, basic.consume, confirm.select on channel 1: all wait. */
void amqp_declare_queue(int fd, const char *name, int durable, int stream);
void amqp_delete_queue(int fd, const char *name);
void amqp_declare_exchange(int fd, const char *name, const char *type);
void amqp_delete_exchange(int fd, const char *name);
void amqp_bind(int fd, const char *queue, const char *exchange, const char *key);
void amqp_qos(int fd, unsigned prefetch);
/* `offset`: where a reader of a stream begins, NULL for another queue. */
void amqp_consume(int fd, const char *queue, int no_ack, const char *offset);
void amqp_confirm_select(int fd);

/* The positions of the parts of a message's frames that differ between messages: the body; the message-id, ID_SIZE bytes
   of text, 0 if there is none; over 1.0 delivery-id and -tag, four bytes each. */
#define ID_SIZE 16
struct places {
    size_t body, text, id, tag;
};

/* basic.publish with its content, whose body is `size` bytes from `body`; with `properties` it has a message-id, a content
   type, a timestamp and two headers. */
struct places put_publish(struct buf *b, const char *exchange, const char *key, int persistent, int properties,
                          const uint8_t *body, size_t size);
void put_ack(struct buf *b, uint64_t tag, int multiple);

/* Prints the reply code and text of a connection.close or channel.close payload, and exits. */
_Noreturn void amqp_refused(const uint8_t *payload);
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
