// Process orders over AMQP 1.0 until SIGTERM, or place one:
//
//	go run ./amqp10
//	go run ./amqp10 place 1 20
//
// The queue `go-orders` must exist: ./amqp091 declares it.
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
	"syscall"
	"time"

	amqp "github.com/Azure/go-amqp"
)

const (
	address = "/queues/go-orders"
	credit  = 10
)

type order struct {
	ID     int `json:"id"`
	Amount int `json:"amount"`
}

func connect(ctx context.Context) (*amqp.Conn, *amqp.Session, error) {
	url := os.Getenv("AMQP_URL")
	if url == "" {
		url = "amqp://guest:guest@localhost:5672"
	}
	connection, err := amqp.Dial(ctx, url, &amqp.ConnOptions{IdleTimeout: time.Minute})
	if err != nil {
		return nil, nil, err
	}
	session, err := connection.NewSession(ctx, nil)
	if err != nil {
		connection.Close()
		return nil, nil, err
	}
	return connection, session, nil
}

// place sends an order and returns when it is on disk.
func place(ctx context.Context, placed order) error {
	connection, session, err := connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	sender, err := session.NewSender(ctx, address, nil)
	if err != nil {
		return err
	}
	body, err := json.Marshal(placed)
	if err != nil {
		return err
	}
	message := amqp.NewMessage(body)
	message.Header = &amqp.MessageHeader{Durable: true}
	// An error if the broker rejects or releases the message.
	return sender.Send(ctx, message, nil)
}

func handle(message *amqp.Message) error {
	var placed order
	if err := json.Unmarshal(message.GetData(), &placed); err != nil {
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
	connection, session, err := connect(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	receiver, err := session.NewReceiver(ctx, address, &amqp.ReceiverOptions{Credit: credit})
	if err != nil {
		return err
	}
	log.Print("ready")
	for {
		message, err := receiver.Receive(ctx, nil)
		if err != nil {
			return err
		}
		// A message that was received is settled even after SIGTERM.
		settling := context.WithoutCancel(ctx)
		if failure := handle(message); failure != nil {
			log.Printf("failed: %v", failure)
			// Back to the queue as a failed delivery, until its delivery limit.
			err = receiver.ModifyMessage(settling, message, &amqp.ModifyMessageOptions{DeliveryFailed: true})
		} else {
			err = receiver.AcceptMessage(settling, message)
		}
		if err != nil {
			return err
		}
	}
}

func main() {
	log.SetFlags(0)
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer cancel()
	if len(os.Args) == 4 && os.Args[1] == "place" {
		id, errID := strconv.Atoi(os.Args[2])
		amount, errAmount := strconv.Atoi(os.Args[3])
		if err := errors.Join(errID, errAmount); err != nil {
			log.Fatal(err)
		}
		if err := place(ctx, order{id, amount}); err != nil {
			log.Fatal(err)
		}
		return
	}
	for ctx.Err() == nil {
		if err := consume(ctx); err != nil && ctx.Err() == nil {
			log.Printf("connecting again: %v", err)
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
		}
	}
}
