// Process orders over AMQP 0-9-1 until SIGTERM, or place one:
//
//	go run ./amqp091
//	go run ./amqp091 place 1 20
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	exchange = "go-orders"
	queue    = "go-orders"
	failed   = "go-orders-failed"
	prefetch = 10
	workers  = 4
)

type order struct {
	ID     int `json:"id"`
	Amount int `json:"amount"`
}

func url() string {
	if url := os.Getenv("AMQP_URL"); url != "" {
		return url
	}
	return "amqp://guest:guest@localhost:5672/"
}

func declare(channel *amqp.Channel) error {
	if err := channel.ExchangeDeclare(exchange, "topic", true, false, false, false, nil); err != nil {
		return err
	}
	if _, err := channel.QueueDeclare(failed, true, false, false, false, nil); err != nil {
		return err
	}
	// The third failure is the last: a quorum queue counts them, and sends the order to `failed`.
	arguments := amqp.Table{
		amqp.QueueTypeArg:           amqp.QueueTypeQuorum,
		"x-delivery-limit":          2,
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": failed,
	}
	if _, err := channel.QueueDeclare(queue, true, false, false, false, arguments); err != nil {
		return err
	}
	return channel.QueueBind(queue, "order.*", exchange, false, nil)
}

// place publishes an order and returns when it is on disk.
func place(ctx context.Context, channel *amqp.Channel, placed order) error {
	body, err := json.Marshal(placed)
	if err != nil {
		return err
	}
	returned := channel.NotifyReturn(make(chan amqp.Return, 1))
	confirm, err := channel.PublishWithDeferredConfirmWithContext(ctx, exchange, "order.placed", true, false,
		amqp.Publishing{ContentType: "application/json", DeliveryMode: amqp.Persistent, Body: body})
	if err != nil {
		return err
	}
	acked, err := confirm.WaitContext(ctx)
	if err != nil {
		return err
	}
	select {
	case message := <-returned:
		return fmt.Errorf("no queue got the order: %s", message.ReplyText)
	default:
	}
	if !acked {
		return errors.New("the broker refused the order")
	}
	return nil
}

func handle(delivery amqp.Delivery) error {
	var placed order
	if err := json.Unmarshal(delivery.Body, &placed); err != nil {
		return err
	}
	if placed.Amount <= 0 {
		return fmt.Errorf("order %d: amount %d", placed.ID, placed.Amount)
	}
	log.Printf("order %d done", placed.ID)
	return nil
}

// consume processes orders until the context is cancelled or the connection is lost.
func consume(ctx context.Context) error {
	connection, err := amqp.DialConfig(url(), amqp.Config{Heartbeat: 30 * time.Second})
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := declare(channel); err != nil {
		return err
	}
	if err := channel.Qos(prefetch, 0, false); err != nil {
		return err
	}
	const tag = "worker"
	deliveries, err := channel.Consume(queue, tag, false, false, false, false, nil)
	if err != nil {
		return err
	}
	// Cancelling ends the deliveries; the workers finish those that the channel still holds.
	stop := context.AfterFunc(ctx, func() { channel.Cancel(tag, false) })
	defer stop()
	log.Print("ready")
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for delivery := range deliveries {
				if err := handle(delivery); err != nil {
					log.Printf("failed: %v", err)
					// Back to the queue, until its delivery limit.
					delivery.Nack(false, true)
				} else {
					delivery.Ack(false)
				}
			}
		})
	}
	group.Wait()
	if ctx.Err() == nil {
		return errors.New("the connection or the consumer was closed")
	}
	return nil
}

func placeOne(arguments []string) error {
	id, errID := strconv.Atoi(arguments[0])
	amount, errAmount := strconv.Atoi(arguments[1])
	if err := errors.Join(errID, errAmount); err != nil {
		return err
	}
	connection, err := amqp.Dial(url())
	if err != nil {
		return err
	}
	defer connection.Close()
	channel, err := connection.Channel()
	if err != nil {
		return err
	}
	if err := errors.Join(channel.Confirm(false), declare(channel)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return place(ctx, channel, order{id, amount})
}

func main() {
	log.SetFlags(0)
	if len(os.Args) == 4 && os.Args[1] == "place" {
		if err := placeOne(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
		return
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	for ctx.Err() == nil {
		if err := consume(ctx); err != nil {
			log.Printf("connecting again: %v", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}
