// The Go client against a broker: one function per subject; prints passed and failed functions.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var (
	url     = os.Getenv("LEVERET_URL")
	numbers = 0
	within  = 20 * time.Second
)

func unique(what string) string {
	numbers++
	return fmt.Sprintf("go.%d.%s.%d", os.Getpid(), what, numbers)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(got, want any) {
	if !reflect.DeepEqual(got, want) {
		panic(fmt.Sprintf("got %#v, wanted %#v", got, want))
	}
}

func code(err error, want int) {
	var told *amqp.Error
	if !errors.As(err, &told) {
		panic(fmt.Sprintf("no AMQP error but %v", err))
	}
	equal(told.Code, want)
}

func take(channel *amqp.Channel, queue string, autoAck bool) amqp.Delivery {
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if delivery, ok, err := channel.Get(queue, autoAck); err != nil {
			panic(err)
		} else if ok {
			return delivery
		}
	}
	panic("no message in " + queue)
}

func await[T any](what <-chan T) T {
	select {
	case value := <-what:
		return value
	case <-time.After(within):
		panic("nothing came")
	}
}

func send(channel *amqp.Channel, exchange, key string, message amqp.Publishing) {
	check(channel.PublishWithContext(context.Background(), exchange, key, false, false, message))
}

func open() (*amqp.Connection, *amqp.Channel) {
	connection := must(amqp.Dial(url))
	return connection, must(connection.Channel())
}

func exclusive(channel *amqp.Channel, arguments amqp.Table) string {
	return must(channel.QueueDeclare("", false, false, true, false, arguments)).Name
}

func properties(channel *amqp.Channel) {
	queue := exclusive(channel, nil)
	headers := amqp.Table{
		"text": "grüße", "bool": true, "byte": int8(-3), "short": int16(-300), "int": int32(70000), "long": int64(1) << 40,
		"float": float32(0.5), "double": 1.25, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "nothing": nil,
		"time": time.Unix(1700000000, 0).UTC(), "bytes": []byte{0, 255}, "list": []any{int32(1), "two"},
		"table": amqp.Table{"deep": amqp.Table{}},
	}
	send(channel, "", queue, amqp.Publishing{
		Headers: headers, ContentType: "text/plain", ContentEncoding: "utf-8", DeliveryMode: 2, Priority: 5,
		CorrelationId: "c", ReplyTo: "r", Expiration: "60000", MessageId: "m", Timestamp: time.Unix(1700000000, 0),
		Type: "t", UserId: "guest", AppId: "a", Body: []byte("body"),
	})
	got := take(channel, queue, true)
	moment, _ := got.Headers["time"].(time.Time)
	equal(moment.Unix(), int64(1700000000))
	got.Headers["time"] = headers["time"]
	equal(got.Headers, headers)
	equal(string(got.Body), "body")
	equal(got.Timestamp.Unix(), int64(1700000000))
	equal([]string{got.ContentType, got.CorrelationId, got.ReplyTo, got.Expiration, got.MessageId, got.Type, got.UserId},
		[]string{"text/plain", "c", "r", "60000", "m", "t", "guest"})
	equal([]uint8{got.DeliveryMode, got.Priority}, []uint8{2, 5})
}

func confirms(channel *amqp.Channel) {
	queue := unique("confirms")
	must(channel.QueueDeclare(queue, true, false, false, false, nil))
	check(channel.Confirm(false))
	var waiting []*amqp.DeferredConfirmation
	for n := 0; n < 500; n++ {
		waiting = append(waiting, must(channel.PublishWithDeferredConfirm("", queue, false, false,
			amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte(fmt.Sprint(n))})))
	}
	for _, confirm := range waiting {
		equal(confirm.Wait(), true)
	}
	equal(must(channel.QueueDeclarePassive(queue, true, false, false, false, nil)).Messages, 500)
	equal(must(channel.QueuePurge(queue, false)), 500)
	equal(must(channel.QueueDelete(queue, true, true, false)), 0)
}

func nacked(channel *amqp.Channel) {
	queue := exclusive(channel, amqp.Table{"x-max-length": 1, "x-overflow": "reject-publish"})
	check(channel.Confirm(false))
	for _, want := range []bool{true, false} {
		confirm := must(channel.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{Body: []byte("x")}))
		equal(confirm.Wait(), want)
	}
}

func returned(channel *amqp.Channel) {
	returns := channel.NotifyReturn(make(chan amqp.Return, 1))
	check(channel.Publish("", unique("nowhere"), true, false, amqp.Publishing{Body: []byte("back")}))
	got := await(returns)
	equal([]any{got.ReplyCode, got.ReplyText, string(got.Body)}, []any{uint16(312), "NO_ROUTE", "back"})
}

func consuming(channel *amqp.Channel) {
	queue := exclusive(channel, nil)
	check(channel.Qos(3, 0, false))
	deliveries := must(channel.Consume(queue, "tag-ü", false, false, false, false, nil))
	for n := 0; n < 6; n++ {
		send(channel, "", queue, amqp.Publishing{Body: []byte{byte(n)}})
	}
	first, second, third := await(deliveries), await(deliveries), await(deliveries)
	equal(first.ConsumerTag, "tag-ü")
	check(first.Ack(false))
	check(second.Reject(false))
	check(third.Nack(false, true))
	redelivered := 0
	for n := 0; n < 4; n++ {
		delivery := await(deliveries)
		if delivery.Redelivered {
			redelivered++
		}
		check(delivery.Ack(false))
	}
	equal(redelivered, 1)
	check(channel.Cancel("tag-ü", false))
}

func transactions(channel *amqp.Channel) {
	queue := exclusive(channel, nil)
	check(channel.Tx())
	send(channel, "", queue, amqp.Publishing{Body: []byte("1")})
	check(channel.TxRollback())
	send(channel, "", queue, amqp.Publishing{Body: []byte("2")})
	check(channel.TxCommit())
	equal(string(take(channel, queue, true).Body), "2")
}

func routing(channel *amqp.Channel) {
	topic, headers, queue := unique("topic"), unique("headers"), exclusive(channel, nil)
	check(channel.ExchangeDeclare(topic, "topic", false, true, false, false, nil))
	check(channel.ExchangeDeclare(headers, "headers", false, true, true, false, nil))
	check(channel.ExchangeBind(headers, "a.#", topic, false, nil))
	check(channel.QueueBind(queue, "", headers, false, amqp.Table{"x-match": "all", "n": int32(1)}))
	send(channel, topic, "a.b", amqp.Publishing{Headers: amqp.Table{"n": int32(2)}, Body: []byte("no")})
	send(channel, topic, "a.b", amqp.Publishing{Headers: amqp.Table{"n": int32(1)}, Body: []byte("yes")})
	equal(string(take(channel, queue, true).Body), "yes")
	check(channel.QueueUnbind(queue, "", headers, amqp.Table{"x-match": "all", "n": int32(1)}))
}

func deadLetters(channel *amqp.Channel) {
	dead := exclusive(channel, nil)
	queue := exclusive(channel, amqp.Table{"x-message-ttl": 30, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	send(channel, "", queue, amqp.Publishing{Body: []byte("x")})
	deaths := take(channel, dead, true).Headers["x-death"].([]any)
	entry := deaths[0].(amqp.Table)
	equal([]any{entry["reason"], entry["queue"], entry["count"]}, []any{"expired", queue, int64(1)})
	equal(entry["routing-keys"], []any{queue})
	if _, isTime := entry["time"].(time.Time); !isTime {
		panic("time is no timestamp")
	}
}

func replyTo(channel *amqp.Channel) {
	const reply = "amq.rabbitmq.reply-to"
	queue := exclusive(channel, nil)
	answers := must(channel.Consume(reply, "", true, false, false, false, nil))
	send(channel, "", queue, amqp.Publishing{ReplyTo: reply, CorrelationId: "7", Body: []byte("?")})
	request := take(channel, queue, true)
	send(channel, "", request.ReplyTo, amqp.Publishing{CorrelationId: request.CorrelationId, Body: []byte("!")})
	answer := await(answers)
	equal([]string{answer.CorrelationId, string(answer.Body)}, []string{"7", "!"})
}

func cancelled(channel *amqp.Channel) {
	queue := must(channel.QueueDeclare(unique("gone"), false, false, false, false, nil)).Name
	cancels := channel.NotifyCancel(make(chan string, 1))
	deliveries := must(channel.Consume(queue, "told", false, false, false, false, nil))
	must(channel.QueueDelete(queue, false, false, false))
	equal(await(cancels), "told")
	if _, open := <-deliveries; open {
		panic("a delivery from a queue that is gone")
	}
}

func large(channel *amqp.Channel) {
	queue := exclusive(channel, nil)
	body := bytes.Repeat([]byte("0123456789abcdef"), 10<<20/16)
	send(channel, "", queue, amqp.Publishing{Body: body})
	send(channel, "", queue, amqp.Publishing{})
	equal(bytes.Equal(take(channel, queue, true).Body, body), true)
	equal(len(take(channel, queue, true).Body), 0)
}

func channelErrors(*amqp.Channel) {
	connection := must(amqp.Dial(url))
	defer connection.Close()
	for want, attempt := range map[int]func(*amqp.Channel) error{
		404: func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclarePassive(unique("missing"), false, false, false, false, nil)
			return err
		},
		403: func(channel *amqp.Channel) error {
			return channel.ExchangeDeclare("amq.mine", "direct", false, false, false, false, nil)
		},
		406: func(channel *amqp.Channel) error {
			_, err := channel.QueueDeclare(unique("bad"), false, false, false, false, amqp.Table{"x-max-length": -1})
			return err
		},
	} {
		channel := must(connection.Channel())
		closed := channel.NotifyClose(make(chan *amqp.Error, 1))
		code(attempt(channel), want)
		equal(await(closed).Code, want)
	}
	channel := must(connection.Channel())
	closed := connection.NotifyClose(make(chan *amqp.Error, 1))
	code(channel.ExchangeDeclare(unique("x"), "no-such-type", false, false, false, false, nil), 503)
	equal(await(closed).Code, 503)
}

func connectionOptions(*amqp.Channel) {
	connection := must(amqp.DialConfig(url, amqp.Config{
		Heartbeat: time.Second, FrameSize: 4096, ChannelMax: 3, Properties: amqp.Table{"connection_name": "größe"}}))
	equal([]any{connection.Config.FrameSize, int(connection.Config.ChannelMax)}, []any{4096, 3})
	time.Sleep(3500 * time.Millisecond)
	for n := 0; n < 3; n++ {
		must(connection.Channel())
	}
	if _, err := connection.Channel(); !errors.Is(err, amqp.ErrChannelMax) {
		panic(fmt.Sprintf("a channel too many: %v", err))
	}
	check(connection.UpdateSecret("guest", "renewed"))
	check(connection.Close())
	_, err := amqp.DialConfig(url, amqp.Config{SASL: []amqp.Authentication{&amqp.PlainAuth{Username: "guest", Password: "wrong"}}})
	code(err, 403)
	_, err = amqp.DialConfig(url, amqp.Config{Vhost: "missing"})
	if err == nil {
		panic("a missing virtual host was opened")
	}
	connection = must(amqp.DialConfig(url, amqp.Config{SASL: []amqp.Authentication{&amqp.AMQPlainAuth{Username: "guest", Password: "guest"}}}))
	check(connection.Close())
}

func main() {
	passed, failed := 0, 0
	for _, test := range []struct {
		name string
		run  func(*amqp.Channel)
	}{
		{"properties", properties}, {"confirms", confirms}, {"nacked", nacked}, {"returned", returned},
		{"consuming", consuming}, {"transactions", transactions}, {"routing", routing}, {"deadLetters", deadLetters},
		{"replyTo", replyTo}, {"cancelled", cancelled}, {"large", large}, {"channelErrors", channelErrors},
		{"connectionOptions", connectionOptions},
	} {
		func() {
			defer func() {
				if problem := recover(); problem != nil {
					failed++
					fmt.Printf("FAILED %s: %v\n%s\n", test.name, problem, debug.Stack())
				} else {
					passed++
					fmt.Printf("ok %s\n", test.name)
				}
			}()
			connection, channel := open()
			defer connection.Close()
			test.run(channel)
		}()
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
