/* The parts of AMQP 1.0 that a load generator needs: one session and one link per connection, deliveries of one frame. */
#ifndef AMQP1_H
#define AMQP1_H

#include "amqp.h"

/* Performatives, by their descriptors. */
enum { OPEN1 = 0x10, BEGIN1, ATTACH1, FLOW1, TRANSFER1, DISPOSITION1, DETACH1, END1, CLOSE1 };

/* The remaining credit and window of a sender, as delivery-ids, which equal its delivery-count and transfer-ids. */
struct room1 {
    uint32_t credit_end, window_end;
};

/* A received frame: its performative (0: none), its unread fields, and the position of its payload. */
struct frame1 {
    unsigned kind, count;
    const uint8_t *field, *payload, *end;
};

/* Connect, log in, open, begin; the socket is still blocking. Exits on failure. */
int amqp1_open(const struct address *to, struct room1 *room);
/* Attach, and wait for the reply. Deliveries that are sent settled have no outcome. */
void amqp1_attach_sender(int fd, const char *name, const char *address, int settled);
void amqp1_attach_receiver(int fd, const char *name, const char *address, int settled);
/* Like amqp_say_close; amqp_await_close works for both protocols. */
void amqp1_say_close(int fd);

/* A transfer with a message of one data section, with a header if it is durable; with `properties` as in
   `put_publish`. */
struct places put_transfer(struct buf *b, int settled, int durable, int properties, const uint8_t *body, size_t size);
/* Accept the deliveries from first to last. */
void put_accepted(struct buf *b, uint32_t first, uint32_t last);
/* Credit for this many deliveries beyond the received ones. */
void put_credit(struct buf *b, uint32_t came, uint32_t credit);

/* Parse a frame of `size` bytes. */
struct frame1 read_frame1(const uint8_t *data, size_t size);
void read_flow(struct frame1 *frame, struct room1 *room);
struct outcome1 {
    uint32_t first, last;
    int accepted;
};
struct outcome1 read_disposition(struct frame1 *frame);
/* The delivery-id; *body and *size are the content of the first data section, or of a string or binary value. */
uint32_t read_transfer(struct frame1 *frame, const uint8_t **body, size_t *size);
/* Prints the error of a detach, end or close, and exits. */
_Noreturn void amqp1_refused(struct frame1 *frame);

#endif
