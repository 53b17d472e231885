/* As much of AMQP 1.0 as a load generator needs: one session and one link a connection, deliveries of one frame. */
#ifndef AMQP1_H
#define AMQP1_H

#include "amqp.h"

/* Performatives, by their descriptors. */
enum { OPEN1 = 0x10, BEGIN1, ATTACH1, FLOW1, TRANSFER1, DISPOSITION1, DETACH1, END1, CLOSE1 };

/* What a sender may still send, in delivery-ids, which are its delivery-count and transfer-ids, too: all begin with 0. */
struct room1 {
    uint32_t credit_end, window_end;
};

/* A frame that came in: its performative (0: none), the fields that are not read yet, and where its payload begins. */
struct frame1 {
    unsigned kind, count;
    const uint8_t *field, *payload, *end;
};

/* Connect, log in, open, begin; the socket is still blocking. Ends the program where that fails. */
int amqp1_open(const struct address *to, struct room1 *room);
/* Attach, and wait for the answer. Of deliveries that are sent settled nobody says what became of them. */
void amqp1_attach_sender(int fd, const char *name, const char *address, int settled);
void amqp1_attach_receiver(int fd, const char *name, const char *address, int settled);
/* As amqp_say_close; amqp_await_close fits both protocols. */
void amqp1_say_close(int fd);

/* A transfer with a message of one data section, with a header where it is durable; with `properties` as in
   `put_publish`. */
struct places put_transfer(struct buf *b, int settled, int durable, int properties, const uint8_t *body, size_t size);
/* Accepts the deliveries first to last. */
void put_accepted(struct buf *b, uint32_t first, uint32_t last);
/* Credit for so many deliveries beside those that came. */
void put_credit(struct buf *b, uint32_t came, uint32_t credit);

/* Takes the frame apart; `size` is all of it. */
struct frame1 read_frame1(const uint8_t *data, size_t size);
void read_flow(struct frame1 *frame, struct room1 *room);
struct outcome1 {
    uint32_t first, last;
    int accepted;
};
struct outcome1 read_disposition(struct frame1 *frame);
/* The delivery-id; *body and *size are the content of the first data section, or of a value of text or octets. */
uint32_t read_transfer(struct frame1 *frame, const uint8_t **body, size_t *size);
/* Prints what a detach, end or close says and ends the program. */
_Noreturn void amqp1_refused(struct frame1 *frame);

#endif
