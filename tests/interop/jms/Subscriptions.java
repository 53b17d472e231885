import jakarta.jms.Connection;
import jakarta.jms.ConnectionFactory;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid JMS: subscriptions of all kinds, browsers, transactions, temporary destinations, selectors. */
public class Subscriptions {
    private static final long WAIT = 20_000;
    private static final long NOTHING = 500;
    private static int passed = 0;
    private static ConnectionFactory factory;

    public static void main(String[] arguments) throws Exception {
        URI url = new URI(System.getenv("LEVERET_URL"));
        factory = new JmsConnectionFactory("guest", "guest", "amqp://" + url.getHost() + ":" + url.getPort());
        durableSubscriber();
        changedSubscription();
        nonDurableSubscribers();
        sharedDurable("sharing");
        sharedDurable(null);
        sharedNonDurable();
        unknownSubscription();
        browser();
        transactedSession();
        recovery();
        temporaryDestinations();
        selectors();
        System.out.println(passed + " passed");
    }

    private static void durableSubscriber() throws JMSException {
        try (Connection connection = open("durable")) {
            Session session = session(connection);
            session.createDurableConsumer(session.createTopic("news"), "sub").close();
        }
        publish("news", "one", "two");
        try (Connection connection = open("durable")) {
            Session session = session(connection);
            MessageConsumer consumer = session.createDurableConsumer(session.createTopic("news"), "sub");
            expect(consumer, "one", "two");
            ok("a durable subscriber gets what came while it was away");
            try {
                session.unsubscribe("sub");
                throw new IllegalStateException("unsubscribed with a consumer");
            } catch (JMSException refused) {
                ok("no unsubscribing with a consumer");
            }
            consumer.close();
            publish("news", "three");
            consumer = session.createDurableConsumer(session.createTopic("news"), "sub");
            expect(consumer, "three");
            consumer.close();
            ok("and after its close");
            session.unsubscribe("sub");
            publish("news", "four");
            consumer = session.createDurableConsumer(session.createTopic("news"), "sub");
            expectNothing(consumer);
            consumer.close();
            session.unsubscribe("sub");
            ok("nothing is left once it has unsubscribed");
        }
    }

    private static void changedSubscription() throws JMSException {
        try (Connection connection = open("changing")) {
            Session session = session(connection);
            Topic topic = session.createTopic("changes");
            session.createDurableConsumer(topic, "sub", "kind = 'a'", false).close();
            publish("changes", "a", "b");
            MessageConsumer consumer = session.createDurableConsumer(topic, "sub", "kind = 'b'", false);
            expectNothing(consumer);
            publish("changes", "a", "b");
            expect(consumer, "b");
            consumer.close();
            session.unsubscribe("sub");
            ok("another selector is another subscription");
        }
    }

    private static void nonDurableSubscribers() throws JMSException {
        try (Connection connection = open(null)) {
            Session session = session(connection);
            MessageConsumer one = session.createConsumer(session.createTopic("plain"));
            MessageConsumer two = session.createConsumer(session.createTopic("plain"));
            publish("plain", "x");
            expect(one, "x");
            expect(two, "x");
            one.close();
            publish("plain", "y");
            expect(two, "y");
            ok("subscribers get a copy each");
            MessageConsumer deaf = session.createConsumer(session.createTopic("plain"), null, true);
            send(session, session.createTopic("plain"), "own");
            publish("plain", "other");
            expect(deaf, "other");
            ok("no local messages");
        }
    }

    private static void sharedDurable(String id) throws JMSException {
        String kind = id == null ? "global" : "of a client";
        try (Connection connection = open(id)) {
            Session session = session(connection);
            session.createSharedDurableConsumer(session.createTopic("shares"), "shared").close();
        }
        publish("shares", "1", "2", "3", "4");
        try (Connection connection = open(id)) {
            Session session = session(connection);
            Session second = session(connection);
            MessageConsumer one = session.createSharedDurableConsumer(session.createTopic("shares"), "shared");
            expectAll(List.of("1", "2", "3", "4"), one);
            ok("a shared durable subscription gets the messages published while it had no consumer, " + kind);
            MessageConsumer two = second.createSharedDurableConsumer(second.createTopic("shares"), "shared");
            publish("shares", "5", "6", "7", "8", "9");
            expectAll(List.of("5", "6", "7", "8", "9"), one, two);
            ok("its consumers share, " + kind);
            one.close();
            publish("shares", "10");
            expect(two, "10");
            two.close();
            publish("shares", "11");
        }
        try (Connection connection = open(id)) {
            Session session = session(connection);
            MessageConsumer again = session.createSharedDurableConsumer(session.createTopic("shares"), "shared");
            expect(again, "11");
            again.close();
            session.unsubscribe("shared");
            publish("shares", "12");
            again = session.createSharedDurableConsumer(session.createTopic("shares"), "shared");
            expectNothing(again);
            again.close();
            session.unsubscribe("shared");
            ok("and it ends with an unsubscribe, " + kind);
        }
    }

    private static void sharedNonDurable() throws JMSException {
        try (Connection first = open(null); Connection second = open(null)) {
            Session one = session(first);
            Session two = session(second);
            MessageConsumer left = one.createSharedConsumer(one.createTopic("volatile"), "v");
            MessageConsumer right = two.createSharedConsumer(two.createTopic("volatile"), "v");
            publish("volatile", "1", "2", "3", "4");
            expectAll(List.of("1", "2", "3", "4"), left, right);
            left.close();
            publish("volatile", "5");
            expect(right, "5");
            right.close();
            publish("volatile", "6");
            left = one.createSharedConsumer(one.createTopic("volatile"), "v");
            expectNothing(left);
            ok("a shared subscription that is not durable ends with its last consumer");
        }
    }

    private static void unknownSubscription() throws JMSException {
        try (Connection connection = open("unknowing")) {
            Session session = session(connection);
            try {
                session.unsubscribe("never");
                throw new IllegalStateException("unsubscribed from nothing");
            } catch (InvalidDestinationException refused) {
                ok("no subscription of that name");
            }
        }
    }

    private static void browser() throws JMSException {
        try (Connection connection = open(null)) {
            Session session = session(connection);
            Queue queue = session.createQueue("browsed");
            send(session, queue, "1", "2", "3");
            for (int round = 0; round < 2; round++) {
                QueueBrowser browser = session.createBrowser(queue);
                List<String> seen = new ArrayList<>();
                for (Object message : Collections.list(browser.getEnumeration())) {
                    seen.add(((TextMessage) message).getText());
                }
                check(seen.equals(List.of("1", "2", "3")), "browsed " + seen);
                browser.close();
            }
            expect(session.createConsumer(queue), "1", "2", "3");
            ok("browsers take nothing");
        }
    }

    private static void transactedSession() throws JMSException {
        try (Connection connection = open(null)) {
            Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = session.createQueue("transacted");
            Session other = session(connection);
            send(session, queue, "1", "2");
            session.rollback();
            send(session, queue, "3", "4");
            MessageConsumer watch = other.createConsumer(queue);
            expectNothing(watch);
            watch.close();
            session.commit();
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "3", "4");
            session.rollback();
            expect(consumer, "3", "4");
            session.commit();
            consumer.close();
            expectNothing(other.createConsumer(queue));
            ok("a transacted session");
        }
    }

    private static void recovery() throws JMSException {
        try (Connection connection = open(null)) {
            Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
            Queue queue = session.createQueue("recovered");
            send(session, queue, "1", "2");
            MessageConsumer consumer = session.createConsumer(queue);
            expect(consumer, "1", "2");
            session.recover();
            Message again = consumer.receive(WAIT);
            check(again != null && again.getJMSRedelivered(), "it was delivered before");
            again = consumer.receive(WAIT);
            again.acknowledge();
            ok("a session recovers");
        }
    }

    private static void temporaryDestinations() throws JMSException {
        try (Connection connection = open(null)) {
            Session session = session(connection);
            TemporaryQueue queue = session.createTemporaryQueue();
            MessageConsumer consumer = session.createConsumer(queue);
            publishTo(queue.getQueueName(), "reply");
            expect(consumer, "reply");
            consumer.close();
            queue.delete();
            ok("a temporary queue");
            TemporaryTopic topic = session.createTemporaryTopic();
            MessageConsumer one = session.createConsumer(topic);
            MessageConsumer two = session.createConsumer(topic);
            send(session, topic, "to all");
            expect(one, "to all");
            expect(two, "to all");
            one.close();
            two.close();
            topic.delete();
            ok("a temporary topic");
        }
    }

    private static void selectors() {
        try (JMSContext context = factory.createContext()) {
            Queue queue = context.createQueue("selected");
            // The producers of a context are anonymous, and send to existing queues.
            context.createConsumer(queue).close();
            for (int number = 1; number <= 4; number++) {
                context.createProducer().setProperty("number", number).send(queue, "m" + number);
            }
            JMSConsumer consumer = context.createConsumer(queue, "number BETWEEN 2 AND 3");
            check("m2".equals(consumer.receiveBody(String.class, WAIT)), "the first that matches");
            check("m3".equals(consumer.receiveBody(String.class, WAIT)), "the second that matches");
            check(consumer.receiveNoWait() == null, "nothing else matches");
            consumer.close();
            consumer = context.createConsumer(queue);
            check("m1".equals(consumer.receiveBody(String.class, WAIT)), "the message that did not match is missing");
            check("m4".equals(consumer.receiveBody(String.class, WAIT)), "all of it");
            ok("selectors");
        }
    }

    // Shared helpers

    private static Connection open(String id) throws JMSException {
        Connection connection = factory.createConnection();
        if (id != null) {
            connection.setClientID(id);
        }
        connection.start();
        return connection;
    }

    private static Session session(Connection connection) throws JMSException {
        return connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    }

    private static void send(Session session, jakarta.jms.Destination destination, String... texts) throws JMSException {
        MessageProducer producer = session.createProducer(destination);
        for (String text : texts) {
            TextMessage message = session.createTextMessage(text);
            message.setStringProperty("kind", text);
            producer.send(message);
        }
        producer.close();
    }

    private static void publish(String topic, String... texts) throws JMSException {
        try (Connection connection = open(null)) {
            Session session = session(connection);
            send(session, session.createTopic(topic), texts);
        }
    }

    private static void publishTo(String queue, String... texts) throws JMSException {
        try (Connection connection = open(null)) {
            Session session = session(connection);
            send(session, session.createQueue(queue), texts);
        }
    }

    private static void expect(MessageConsumer consumer, String... texts) throws JMSException {
        for (String text : texts) {
            Message message = consumer.receive(WAIT);
            String got = message == null ? "nothing" : ((TextMessage) message).getText();
            check(got.equals(text), "expected " + text + ", got " + got);
        }
    }

    private static void expectNothing(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(NOTHING);
        check(message == null, "expected nothing, got " + message);
    }

    private static void expectAll(List<String> texts, MessageConsumer... consumers) throws JMSException {
        List<String> got = new ArrayList<>();
        long end = System.currentTimeMillis() + WAIT;
        while (got.size() < texts.size() && System.currentTimeMillis() < end) {
            for (MessageConsumer consumer : consumers) {
                Message message = consumer.receive(50);
                if (message != null) {
                    got.add(((TextMessage) message).getText());
                }
            }
        }
        Collections.sort(got);
        check(got.equals(texts), "expected " + texts + ", got " + got);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    private static void ok(String what) {
        passed++;
        System.out.println("ok " + what);
    }
}
