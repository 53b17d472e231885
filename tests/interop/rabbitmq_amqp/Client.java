import com.rabbitmq.client.amqp.AmqpException;
import com.rabbitmq.client.amqp.Connection;
import com.rabbitmq.client.amqp.Consumer;
import com.rabbitmq.client.amqp.ConsumerBuilder;
import com.rabbitmq.client.amqp.Environment;
import com.rabbitmq.client.amqp.Management;
import com.rabbitmq.client.amqp.Message;
import com.rabbitmq.client.amqp.Publisher;
import com.rabbitmq.client.amqp.Requester;
import com.rabbitmq.client.amqp.Responder;
import com.rabbitmq.client.amqp.impl.AmqpEnvironmentBuilder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's AMQP 1.0 client for Java. */
public class Client {
    private static int passed = 0;
    private static Connection connection;
    private static Management management;

    public static void main(String[] arguments) throws Exception {
        String url = System.getenv("LEVERET_URL");
        try (Environment environment = new AmqpEnvironmentBuilder().build()) {
            connection = environment.connectionBuilder().uri(url).recovery().activated(false).connectionBuilder().build();
            management = connection.management();
            queues();
            exchangesAndBindings();
            outcomesOfPublishing();
            outcomesOfConsuming();
            presettled();
            priorities();
            filters();
            streams();
            requests();
            refusals();
            connection.close();
            try {
                environment.connectionBuilder().uri(url.replace(":guest@", ":wrong@")).build();
                throw new IllegalStateException("in by a wrong password");
            } catch (AmqpException.AmqpSecurityException refused) {
                ok("a wrong password");
            }
        }
        System.out.println(passed + " passed");
    }

    private static void queues() throws Exception {
        for (Management.QueueType type : new Management.QueueType[] {Management.QueueType.QUORUM,
                Management.QueueType.CLASSIC}) {
            String name = "java 10/" + type;
            Management.QueueInfo info = management.queue(name).type(type).maxLength(10)
                    .messageTtl(Duration.ofHours(1)).deadLetterExchange("amq.fanout").declare();
            check(info.name().equals(name) && info.type() == type && info.durable() && !info.exclusive(), "declared");
            check(info.leader() != null && info.members().equals(List.of(info.leader())), "its members");
            info = management.queue(name).type(type).maxLength(10)
                    .messageTtl(Duration.ofHours(1)).deadLetterExchange("amq.fanout").declare();
            check(((Number) info.arguments().get("x-max-length")).intValue() == 10, "declared again");
            try {
                management.queue(name).type(type).maxLength(11).declare();
                throw new IllegalStateException("a different queue was declared");
            } catch (AmqpException refused) {
                ok("a different queue");
            }
            publish(name, "one", "two");
            check(management.queueInfo(name).messageCount() == 2, "messages are counted");
            check(management.queuePurge(name).messageCount() == 2, "purged");
            management.queueDelete(name);
            try {
                management.queueInfo(name);
                throw new IllegalStateException("the queue is still there");
            } catch (AmqpException.AmqpEntityDoesNotExistException gone) {
                ok("deleted");
            }
        }
        Management.QueueInfo named = management.queue().exclusive(true).autoDelete(true).declare();
        check(named.exclusive() && named.autoDelete(), "a queue that the client names");
        management.queueDelete(named.name());
    }

    private static void exchangesAndBindings() throws Exception {
        management.exchange("java.x").type(Management.ExchangeType.TOPIC).declare();
        management.exchange("java.y").type("fanout").autoDelete(true).declare();
        management.queue("java.bound").declare();
        Map<String, Object> some = Map.of("a", 1, "b", "text");
        management.binding().sourceExchange("java.x").destinationQueue("java.bound").key("k.#").arguments(some).bind();
        management.binding().sourceExchange("java.x").destinationQueue("java.bound").key("k.#").bind();
        management.binding().sourceExchange("java.x").destinationExchange("java.y").key("y").bind();
        management.binding().sourceExchange("java.y").destinationQueue("java.bound").bind();
        check(publishTo("java.x", "k.1") == Publisher.Status.ACCEPTED, "bound");
        check(publishTo("java.x", "y") == Publisher.Status.ACCEPTED, "bound to an exchange");
        check(management.queuePurge("java.bound").messageCount() == 2, "each once");
        management.unbind().sourceExchange("java.x").destinationQueue("java.bound").key("k.#").unbind();
        check(publishTo("java.x", "k.1") == Publisher.Status.ACCEPTED, "the binding with arguments is still there");
        // The client requests the bindings, and deletes the one with these arguments.
        management.unbind().sourceExchange("java.x").destinationQueue("java.bound").key("k.#").arguments(some).unbind();
        check(publishTo("java.x", "k.1") == Publisher.Status.RELEASED, "unbound");
        management.unbind().sourceExchange("java.x").destinationExchange("java.y").key("y").unbind();
        check(publishTo("java.x", "y") == Publisher.Status.RELEASED, "unbound from an exchange");
        management.queueDelete("java.bound");
        management.exchangeDelete("java.x");
        management.exchangeDelete("java.y");
    }

    private static void outcomesOfPublishing() throws Exception {
        management.queue("java.full").maxLength(1).overflowStrategy(Management.OverflowStrategy.REJECT_PUBLISH).declare();
        try (Publisher publisher = connection.publisherBuilder().queue("java.full").build()) {
            check(publish(publisher, publisher.message(bytes("one"))).status() == Publisher.Status.ACCEPTED, "accepted");
            Publisher.Context refused = publish(publisher, publisher.message(bytes("two")));
            check(refused.status() == Publisher.Status.REJECTED, "rejected");
            check(refused.failureCause().getMessage().contains("java.full"), "the client is told which queue is full");
        }
        try (Publisher publisher = connection.publisherBuilder().build()) {
            Message there = publisher.message(bytes("x")).toAddress().exchange("amq.direct").key("nowhere").message();
            check(publish(publisher, there).status() == Publisher.Status.RELEASED, "an address in the message");
        }
        management.queueDelete("java.full");
    }

    private static void outcomesOfConsuming() throws Exception {
        management.queue("java.dead").declare();
        management.queue("java.q").type(Management.QueueType.QUORUM).deadLetterExchange("").deadLetterRoutingKey("java.dead")
                .declare();
        publish("java.q", "accept", "discard", "annotate", "requeue", "again");
        List<String> seen = new ArrayList<>();
        BlockingQueue<String> last = new LinkedBlockingQueue<>();
        Consumer consumer = connection.consumerBuilder().queue("java.q").initialCredits(1).messageHandler((context, message) -> {
            String body = text(message);
            seen.add(body);
            switch (body) {
                case "discard" -> context.discard();
                case "annotate" -> context.discard(Map.of("x-opt-why", "because"));
                case "requeue" -> {
                    if (message.hasAnnotation("x-opt-times")) {
                        context.accept();
                    } else {
                        context.requeue(Map.of("x-opt-times", 1));
                    }
                }
                default -> context.accept();
            }
            if (seen.size() == 6) {
                last.add(body);
            }
        }).build();
        check(last.poll(20, TimeUnit.SECONDS) != null, "everything came");
        until(() -> consumer.unsettledMessageCount() == 0);
        consumer.close();
        check(seen.subList(0, 4).equals(List.of("accept", "discard", "annotate", "requeue")), "in order");
        // The client may have given credit for the next message before the requeued one was back in its place.
        check(seen.subList(4, 6).containsAll(List.of("requeue", "again")), "requeued");
        BlockingQueue<Message> dead = new LinkedBlockingQueue<>();
        Consumer other = connection.consumerBuilder().queue("java.dead").messageHandler((context, message) -> {
            dead.add(message);
            context.accept();
        }).build();
        check(text(dead.poll(20, TimeUnit.SECONDS)).equals("discard"), "discarded");
        Message annotated = dead.poll(20, TimeUnit.SECONDS);
        check("because".equals(annotated.annotation("x-opt-why")), "with an annotation");
        check("java.dead".equals(annotated.annotation("x-routing-key")), "the key of a dead letter");
        other.close();
        BlockingQueue<Integer> batches = new LinkedBlockingQueue<>();
        publish("java.q", "1", "2", "3");
        List<Consumer.BatchContext> batch = new ArrayList<>();
        Consumer third = connection.consumerBuilder().queue("java.q").messageHandler((context, message) -> {
            if (batch.isEmpty()) {
                batch.add(context.batch(3));
            }
            batch.get(0).add(context);
            if (batch.get(0).size() == 3) {
                batch.get(0).accept();
                batches.add(3);
            }
        }).build();
        check(batches.poll(20, TimeUnit.SECONDS) != null, "settled in a batch");
        until(() -> third.unsettledMessageCount() == 0);
        third.close();
        check(management.queuePurge("java.q").messageCount() == 0, "nothing is left");
        management.queueDelete("java.q");
        management.queueDelete("java.dead");
    }

    private static void presettled() throws Exception {
        management.queue("java.settled").declare();
        publish("java.settled", "one");
        BlockingQueue<Message> got = new LinkedBlockingQueue<>();
        Consumer consumer = connection.consumerBuilder().queue("java.settled").preSettled()
                .messageHandler((context, message) -> got.add(message)).build();
        check(text(got.poll(20, TimeUnit.SECONDS)).equals("one"), "presettled");
        consumer.close();
        management.queueDelete("java.settled");
    }

    private static void priorities() throws Exception {
        management.queue("java.priorities").type(Management.QueueType.QUORUM).declare();
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        Consumer low = connection.consumerBuilder().queue("java.priorities").messageHandler((context, message) -> {
            got.add("low");
            context.accept();
        }).build();
        Consumer high = connection.consumerBuilder().queue("java.priorities").priority(5).messageHandler((context, message) -> {
            got.add("high");
            context.accept();
        }).build();
        publish("java.priorities", "one", "two");
        check("high".equals(got.poll(20, TimeUnit.SECONDS)) && "high".equals(got.poll(20, TimeUnit.SECONDS)), "priority");
        low.close();
        high.close();
        management.queueDelete("java.priorities");
    }

    private static void filters() throws Exception {
        management.queue("java.filters").declare();
        try (Publisher publisher = connection.publisherBuilder().queue("java.filters").build()) {
            for (int number = 0; number < 4; number++) {
                publish(publisher, publisher.message(bytes("" + number)).subject(number % 2 == 0 ? "even" : "odd")
                        .property("number", number));
            }
        }
        check(filtered(true).equals("02"), "a filter on properties");
        check(filtered(false).equals("13"), "a filter in SQL");
        management.queueDelete("java.filters");
    }

    private static String filtered(boolean properties) throws Exception {
        BlockingQueue<String> got = new LinkedBlockingQueue<>();
        var builder = connection.consumerBuilder().queue("java.filters").messageHandler((context, message) -> {
            got.add(text(message));
            context.accept();
        });
        if (properties) {
            builder.stream().filter().subject("even").stream();
        } else {
            builder.stream().filter().sql("properties.subject LIKE 'o%' AND number > 0").stream();
        }
        Consumer consumer = builder.build();
        String found = got.poll(20, TimeUnit.SECONDS) + got.poll(20, TimeUnit.SECONDS);
        until(() -> consumer.unsettledMessageCount() == 0);
        consumer.close();
        return found;
    }

    private static void streams() throws Exception {
        management.queue("java.stream").stream().maxAge(Duration.ofDays(1)).queue().declare();
        publish("java.stream", "0", "1", "2");
        for (int round = 0; round < 2; round++) {
            BlockingQueue<String> got = new LinkedBlockingQueue<>();
            Consumer consumer = connection.consumerBuilder().queue("java.stream").messageHandler((context, message) -> {
                got.add(text(message) + message.annotation("x-stream-offset"));
                context.accept();
            }).stream().offset(ConsumerBuilder.StreamOffsetSpecification.FIRST).builder().build();
            for (String expected : new String[] {"00", "11", "22"}) {
                check(expected.equals(got.poll(20, TimeUnit.SECONDS)), "read from a stream");
            }
            consumer.close();
        }
        management.queueDelete("java.stream");
    }

    private static void requests() throws Exception {
        management.queue("java.requests").declare();
        BlockingQueue<Boolean> alive = new LinkedBlockingQueue<>();
        Responder responder = connection.responderBuilder().requestQueue("java.requests").handler((context, request) -> {
            alive.add(context.isRequesterAlive(request));
            return context.message(bytes("*** " + text(request)));
        }).build();
        try (Requester requester = connection.requesterBuilder().requestAddress().queue("java.requests").requester().build()) {
            for (String question : new String[] {"one", "two"}) {
                Message answer = requester.publish(requester.message(bytes(question))).get(20, TimeUnit.SECONDS);
                check(text(answer).equals("*** " + question), "an answer by direct reply-to");
                check(alive.poll(20, TimeUnit.SECONDS), "who asked is there");
            }
        }
        responder.close();
        management.queueDelete("java.requests");
    }

    private static void refusals() throws Exception {
        try {
            management.queue("java.none").overflowStrategy("explode").declare();
            throw new IllegalStateException("a queue was declared that cannot be");
        } catch (AmqpException refused) {
            ok("a bad argument");
        }
        try {
            management.binding().sourceExchange("amq.direct").destinationQueue("java.none").key("k").bind();
            throw new IllegalStateException("a queue was bound that is not there");
        } catch (AmqpException refused) {
            ok("a binding of nothing");
        }
        try {
            connection.consumerBuilder().queue("java.none").messageHandler((context, message) -> { }).build();
            throw new IllegalStateException("a consumer of nothing");
        } catch (AmqpException.AmqpEntityDoesNotExistException refused) {
            ok("a consumer of nothing");
        }
        check(management.queue("java.after").declare().messageCount() == 0, "the connection goes on");
        management.queueDelete("java.after");
    }

    private static void publish(String queue, String... bodies) throws Exception {
        try (Publisher publisher = connection.publisherBuilder().queue(queue).build()) {
            for (String body : bodies) {
                Publisher.Context context = publish(publisher, publisher.message(bytes(body)));
                if (context.status() != Publisher.Status.ACCEPTED) {
                    throw new IllegalStateException(body + " was " + context.status());
                }
            }
        }
    }

    private static Publisher.Status publishTo(String exchange, String key) throws Exception {
        try (Publisher publisher = connection.publisherBuilder().exchange(exchange).key(key).build()) {
            return publish(publisher, publisher.message(bytes("x"))).status();
        }
    }

    private static Publisher.Context publish(Publisher publisher, Message message) throws Exception {
        BlockingQueue<Publisher.Context> told = new LinkedBlockingQueue<>();
        publisher.publish(message, told::add);
        Publisher.Context context = told.poll(20, TimeUnit.SECONDS);
        if (context == null) {
            throw new IllegalStateException("no outcome");
        }
        return context;
    }

    private static void until(java.util.function.BooleanSupplier condition) throws Exception {
        for (int tries = 0; !condition.getAsBoolean(); tries++) {
            if (tries > 1000) {
                throw new IllegalStateException("it did not come true");
            }
            Thread.sleep(20);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.body(), StandardCharsets.UTF_8);
    }

    private static void check(boolean condition, String what) {
        if (!condition) {
            throw new IllegalStateException(what);
        }
        ok(what);
    }

    private static void ok(String what) {
        System.out.println("ok " + what);
        passed++;
    }
}
