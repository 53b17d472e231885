import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.InvalidSelectorException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TemporaryTopic;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid JMS against a broker: one method per subject; prints passed and failed methods. */
public class Messaging {
  interface Test {
    void run() throws Exception;
  }

  static final URI URL = URI.create(System.getenv("LEVERET_URL"));
  static final String USER = URL.getUserInfo().split(":")[0];
  static final String PASSWORD = URL.getUserInfo().split(":")[1];
  /** Timeout for expected messages. */
  static final long WITHIN = 60_000;
  /** Timeout for unexpected messages: a slow machine makes the test weaker, but never fail. */
  static final long QUIET = 200;

  static int numbers = 0;
  static final List<Connection> opened = new ArrayList<>();

  static String unique(String what) {
    return "messaging." + ProcessHandle.current().pid() + "." + what + "." + (++numbers);
  }

  static JmsConnectionFactory factory(String options) {
    return new JmsConnectionFactory(USER, PASSWORD, "amqp://" + URL.getHost() + ":" + URL.getPort() + options);
  }

  static Connection connect() throws JMSException {
    return connect("", null);
  }

  static Connection connect(String options, String clientId) throws JMSException {
    Connection connection = factory(options).createConnection();
    opened.add(connection);
    if (clientId != null) connection.setClientID(clientId);
    connection.start();
    return connection;
  }

  static void closeAll() {
    for (Connection connection : opened) {
      try {
        connection.close();
      } catch (JMSException ignored) {
      }
    }
    opened.clear();
  }

  static void equal(Object got, Object wanted) {
    if (!java.util.Objects.equals(got, wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
  }

  static void truth(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  static <T extends Throwable> T fails(Class<T> kind, Test test) throws Exception {
    try {
      test.run();
    } catch (Throwable error) {
      if (kind.isInstance(error)) return kind.cast(error);
      throw new AssertionError("failed with " + error + ", wanted " + kind.getSimpleName(), error);
    }
    throw new AssertionError("did not fail with " + kind.getSimpleName());
  }

  static String text(Message message) throws JMSException {
    if (message == null) throw new AssertionError("no message came");
    return ((TextMessage) message).getText();
  }

  static String next(MessageConsumer consumer) throws JMSException {
    return text(consumer.receive(WITHIN));
  }

  static List<String> next(MessageConsumer consumer, int count) throws JMSException {
    List<String> texts = new ArrayList<>();
    for (int number = 0; number < count; number++) texts.add(next(consumer));
    return texts;
  }

  static void nothing(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(QUIET);
    if (message != null) throw new AssertionError("came although nothing was due: " + message);
  }

  static void send(Session session, jakarta.jms.Destination destination, String... texts) throws JMSException {
    MessageProducer producer = session.createProducer(destination);
    for (String text : texts) producer.send(session.createTextMessage(text));
    producer.close();
  }

  static List<String> browse(Session session, Queue queue, String selector) throws JMSException {
    QueueBrowser browser = session.createBrowser(queue, selector);
    List<String> texts = new ArrayList<>();
    for (Object message : Collections.list(browser.getEnumeration())) texts.add(text((Message) message));
    browser.close();
    return texts;
  }

  // Messages

  static void kindsOfMessages() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("kinds"));
    MessageProducer producer = session.createProducer(queue);
    MessageConsumer consumer = session.createConsumer(queue);

    producer.send(session.createTextMessage("Grüße, \uD83D\uDC07"));
    equal(next(consumer), "Grüße, \uD83D\uDC07");

    BytesMessage bytes = session.createBytesMessage();
    bytes.writeLong(42);
    bytes.writeUTF("hare");
    producer.send(bytes);
    BytesMessage gotBytes = (BytesMessage) consumer.receive(WITHIN);
    equal(gotBytes.readLong(), 42L);
    equal(gotBytes.readUTF(), "hare");

    MapMessage map = session.createMapMessage();
    map.setInt("int", -7);
    map.setDouble("double", 0.5);
    map.setBytes("bytes", new byte[] {1, 2});
    map.setString("null", null);
    map.setChar("char", 'x');
    producer.send(map);
    MapMessage gotMap = (MapMessage) consumer.receive(WITHIN);
    equal(gotMap.getInt("int"), -7);
    equal(gotMap.getDouble("double"), 0.5);
    equal(Arrays.toString(gotMap.getBytes("bytes")), "[1, 2]");
    truth(gotMap.itemExists("null") && gotMap.getObject("null") == null, "null is there");
    equal(gotMap.getChar("char"), 'x');

    StreamMessage stream = session.createStreamMessage();
    stream.writeShort((short) 3);
    stream.writeString("s");
    stream.writeBoolean(true);
    producer.send(stream);
    StreamMessage gotStream = (StreamMessage) consumer.receive(WITHIN);
    equal(gotStream.readShort(), (short) 3);
    equal(gotStream.readString(), "s");
    equal(gotStream.readBoolean(), true);

    producer.send(session.createObjectMessage("an object"));
    equal(((ObjectMessage) consumer.receive(WITHIN)).getObject(), "an object");

    producer.send(session.createMessage());
    truth(consumer.receive(WITHIN) != null, "an empty message came");
  }

  static void propertiesAndHeaders() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("properties"));
    Queue answers = session.createQueue(unique("answers"));
    MessageProducer producer = session.createProducer(queue);
    TextMessage message = session.createTextMessage("p");
    message.setBooleanProperty("b", true);
    message.setByteProperty("y", (byte) -1);
    message.setShortProperty("s", (short) -2);
    message.setIntProperty("i", -3);
    message.setLongProperty("l", 1L << 40);
    message.setFloatProperty("f", 0.25f);
    message.setDoubleProperty("d", 0.1);
    message.setStringProperty("t", "text");
    message.setJMSCorrelationID("cor");
    message.setJMSType("greeting");
    message.setJMSReplyTo(answers);
    message.setStringProperty("JMSXGroupID", "group");
    message.setIntProperty("JMSXGroupSeq", 9);
    producer.setPriority(7);
    producer.setDeliveryMode(DeliveryMode.NON_PERSISTENT);
    producer.setTimeToLive(600_000);
    producer.send(message);
    Message got = session.createConsumer(queue).receive(WITHIN);
    equal(got.getBooleanProperty("b"), true);
    equal(got.getByteProperty("y"), (byte) -1);
    equal(got.getShortProperty("s"), (short) -2);
    equal(got.getIntProperty("i"), -3);
    equal(got.getLongProperty("l"), 1L << 40);
    equal(got.getFloatProperty("f"), 0.25f);
    equal(got.getDoubleProperty("d"), 0.1);
    equal(got.getStringProperty("t"), "text");
    equal(got.getJMSMessageID(), message.getJMSMessageID());
    equal(got.getJMSCorrelationID(), "cor");
    equal(got.getJMSType(), "greeting");
    equal(((Queue) got.getJMSReplyTo()).getQueueName(), answers.getQueueName());
    equal(((Queue) got.getJMSDestination()).getQueueName(), queue.getQueueName());
    equal(got.getStringProperty("JMSXGroupID"), "group");
    equal(got.getIntProperty("JMSXGroupSeq"), 9);
    equal(got.getJMSPriority(), 7);
    equal(got.getJMSDeliveryMode(), DeliveryMode.NON_PERSISTENT);
    equal(got.getJMSExpiration(), message.getJMSExpiration());
    equal(got.getJMSTimestamp(), message.getJMSTimestamp());
    equal(got.getJMSRedelivered(), false);
    equal(got.getIntProperty("JMSXDeliveryCount"), 1);
  }

  static void expiredMessagesDoNotCome() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("ttl"));
    MessageProducer producer = session.createProducer(queue);
    producer.setTimeToLive(1);
    producer.send(session.createTextMessage("gone"));
    Thread.sleep(20);
    producer.setTimeToLive(0);
    producer.send(session.createTextMessage("stays"));
    equal(next(session.createConsumer(queue)), "stays");
  }

  static void prioritiesComeFirst() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("priority"));
    MessageProducer producer = session.createProducer(queue);
    for (int priority = 0; priority < 10; priority++) {
      producer.setPriority(priority);
      producer.send(session.createTextMessage("p" + priority));
    }
    MessageConsumer consumer = session.createConsumer(queue);
    for (int priority = 9; priority >= 0; priority--) equal(next(consumer), "p" + priority);
  }

  static void largeMessages() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("large"));
    byte[] body = new byte[5_000_000];
    new java.util.Random(1).nextBytes(body);
    BytesMessage message = session.createBytesMessage();
    message.writeBytes(body);
    session.createProducer(queue).send(message);
    BytesMessage got = (BytesMessage) session.createConsumer(queue).receive(WITHIN);
    byte[] back = new byte[(int) got.getBodyLength()];
    got.readBytes(back);
    truth(Arrays.equals(body, back), "the body came back");
  }

  static void manyMessagesInOrder() throws Exception {
    Connection connection = connect("?jms.forceAsyncSend=true", null);
    Session session = connection.createSession(Session.DUPS_OK_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("many"));
    MessageProducer producer = session.createProducer(queue);
    int count = 3000;
    for (int number = 0; number < count; number++) producer.send(session.createTextMessage("" + number));
    MessageConsumer consumer = session.createConsumer(queue);
    for (int number = 0; number < count; number++) equal(next(consumer), "" + number);
    nothing(consumer);
  }

  static void delayedMessages() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("delayed"));
    MessageProducer producer = session.createProducer(queue);
    producer.setDeliveryDelay(300);
    long began = System.currentTimeMillis();
    producer.send(session.createTextMessage("later"));
    producer.setDeliveryDelay(0);
    producer.send(session.createTextMessage("now"));
    MessageConsumer consumer = session.createConsumer(queue);
    equal(next(consumer), "now");
    equal(next(consumer), "later");
    truth(System.currentTimeMillis() - began >= 290, "it came too early");
  }

  // Acknowledging

  static void unacknowledgedMessagesComeAgain() throws Exception {
    Connection connection = connect();
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("client"));
    send(session, queue, "a", "b", "c");
    MessageConsumer consumer = session.createConsumer(queue);
    equal(next(consumer), "a");
    Message second = consumer.receive(WITHIN);
    equal(text(second), "b");
    session.recover();
    Message again = consumer.receive(WITHIN);
    equal(text(again), "a");
    equal(again.getJMSRedelivered(), true);
    equal(again.getIntProperty("JMSXDeliveryCount"), 2);
    again.acknowledge();
    equal(next(consumer), "b");
    session.close();
    Session other = connection.createSession(Session.AUTO_ACKNOWLEDGE);
    MessageConsumer rest = other.createConsumer(queue);
    Message redelivered = rest.receive(WITHIN);
    equal(text(redelivered), "b");
    equal(next(rest), "c");
    nothing(rest);
  }

  static void redeliveryPolicyRejects() throws Exception {
    Connection connection = connect("?jms.redeliveryPolicy.maxRedeliveries=1", null);
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(unique("poison"));
    send(session, queue, "poison", "good");
    session.commit();
    MessageConsumer consumer = session.createConsumer(queue);
    equal(next(consumer), "poison");
    session.rollback();
    equal(next(consumer), "poison");
    session.rollback();
    equal(next(consumer), "good");
    session.commit();
  }

  static void listeners() throws Exception {
    Session session = connect().createSession(Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("listener"));
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    session.createConsumer(queue).setMessageListener(message -> {
      try {
        got.add(text(message));
      } catch (JMSException error) {
        got.add(error.toString());
      }
    });
    Session sending = connect().createSession();
    send(sending, queue, "1", "2", "3");
    for (String wanted : List.of("1", "2", "3")) equal(got.poll(WITHIN, TimeUnit.MILLISECONDS), wanted);
  }

  static void pulling() throws Exception {
    Session session = connect("?jms.prefetchPolicy.all=0", null).createSession();
    Queue queue = session.createQueue(unique("pull"));
    MessageConsumer consumer = session.createConsumer(queue);
    truth(consumer.receiveNoWait() == null, "the queue is empty");
    send(session, queue, "a", "b");
    equal(text(consumer.receiveNoWait()), "a");
    // Messages that the first consumer has not requested go to others.
    equal(next(session.createConsumer(queue)), "b");
    truth(consumer.receiveNoWait() == null, "the queue is empty again");
  }

  static void competingConsumers() throws Exception {
    Session session = connect("?jms.prefetchPolicy.all=1", null).createSession();
    Queue queue = session.createQueue(unique("competing"));
    MessageConsumer one = session.createConsumer(queue);
    MessageConsumer two = session.createConsumer(queue);
    send(session, queue, "a", "b");
    List<String> got = new ArrayList<>(List.of(next(one), next(two)));
    Collections.sort(got);
    equal(got, List.of("a", "b"));
  }

  // Transactions

  static void transactions() throws Exception {
    Connection connection = connect();
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(unique("tx"));
    MessageConsumer watcher = connection.createSession().createConsumer(queue);
    send(session, queue, "taken back");
    session.rollback();
    send(session, queue, "a", "b");
    nothing(watcher);
    session.commit();
    equal(next(watcher, 2), List.of("a", "b"));
    watcher.close();

    Queue source = session.createQueue(unique("tx-in"));
    Queue target = session.createQueue(unique("tx-out"));
    send(session, source, "m");
    session.commit();
    MessageConsumer consumer = session.createConsumer(source);
    MessageConsumer results = connection.createSession().createConsumer(target);
    send(session, target, "of " + next(consumer));
    session.rollback();
    Message again = consumer.receive(WITHIN);
    equal(text(again), "m");
    equal(again.getJMSRedelivered(), true);
    send(session, target, "of " + text(again));
    nothing(results);
    session.commit();
    equal(next(results), "of m");
    session.close();
    nothing(connection.createSession().createConsumer(source));
  }

  static void closingRollsBack() throws Exception {
    Connection connection = connect();
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(unique("tx-close"));
    send(session, queue, "kept");
    session.commit();
    MessageConsumer consumer = session.createConsumer(queue);
    equal(next(consumer), "kept");
    send(session, queue, "lost");
    session.close();
    MessageConsumer after = connection.createSession().createConsumer(queue);
    equal(next(after), "kept");
    nothing(after);
  }

  // Selectors and browsers

  static void selectors() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("selector"));
    MessageProducer producer = session.createProducer(queue);
    for (int number = 0; number < 4; number++) {
      Message message = session.createTextMessage("n" + number);
      message.setIntProperty("number", number);
      message.setJMSType(number % 2 == 0 ? "even" : "odd");
      producer.send(message);
    }
    equal(next(session.createConsumer(queue, "number = 2")), "n2");
    MessageConsumer odd = session.createConsumer(queue, "JMSType LIKE 'o%' AND JMSPriority BETWEEN 4 AND 5");
    equal(next(odd, 2), List.of("n1", "n3"));
    nothing(odd);
    equal(next(session.createConsumer(queue)), "n0");
    fails(InvalidSelectorException.class, () -> session.createConsumer(queue, "number = = 2"));
  }

  static void browsers() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("browser"));
    equal(browse(session, queue, null), List.of());
    MessageProducer producer = session.createProducer(queue);
    for (int number = 0; number < 5; number++) {
      Message message = session.createTextMessage("n" + number);
      message.setIntProperty("number", number);
      producer.send(message);
    }
    equal(browse(session, queue, null), List.of("n0", "n1", "n2", "n3", "n4"));
    equal(browse(session, queue, "number > 2"), List.of("n3", "n4"));
    // No message was removed or counts as delivered.
    Message first = session.createConsumer(queue).receive(WITHIN);
    equal(text(first), "n0");
    equal(first.getJMSRedelivered(), false);
  }

  // Temporary destinations

  static void requestAndReply() throws Exception {
    Connection connection = connect();
    Session serving = connection.createSession();
    Queue service = serving.createQueue(unique("service"));
    MessageProducer anonymous = serving.createProducer(null);
    serving.createConsumer(service).setMessageListener(message -> {
      try {
        TextMessage answer = serving.createTextMessage("re: " + text(message));
        answer.setJMSCorrelationID(message.getJMSMessageID());
        anonymous.send(message.getJMSReplyTo(), answer);
      } catch (JMSException error) {
        throw new RuntimeException(error);
      }
    });
    Connection asking = connect();
    Session session = asking.createSession();
    for (jakarta.jms.Destination reply :
        List.of(session.createTemporaryQueue(), session.createTemporaryTopic())) {
      MessageConsumer answers = session.createConsumer(reply);
      TextMessage question = session.createTextMessage("q");
      question.setJMSReplyTo(reply);
      session.createProducer(service).send(question);
      Message answer = answers.receive(WITHIN);
      equal(text(answer), "re: q");
      equal(answer.getJMSCorrelationID(), question.getJMSMessageID());
    }
  }

  static void temporaryDestinationsGo() throws Exception {
    Connection connection = connect();
    Session session = connection.createSession();
    TemporaryQueue queue = session.createTemporaryQueue();
    send(session, queue, "a");
    MessageConsumer consumer = session.createConsumer(queue);
    equal(next(consumer), "a");
    consumer.close();
    queue.delete();
    fails(JMSException.class, () -> session.createConsumer(queue));
    TemporaryTopic topic = session.createTemporaryTopic();
    MessageConsumer one = session.createConsumer(topic);
    MessageConsumer two = session.createConsumer(topic);
    send(session, topic, "both");
    equal(next(one), "both");
    equal(next(two), "both");
    one.close();
    two.close();
    topic.delete();
  }

  // Topics

  static void topics() throws Exception {
    Connection connection = connect();
    Session session = connection.createSession();
    Topic topic = session.createTopic(unique("topic"));
    send(session, topic, "no subscriber");
    MessageConsumer one = session.createConsumer(topic);
    MessageConsumer two = session.createConsumer(topic);
    send(session, topic, "all hear it");
    equal(next(one), "all hear it");
    equal(next(two), "all hear it");
    MessageConsumer others = session.createConsumer(topic, null, true);
    send(session, topic, "mine");
    nothing(others);
    send(connect().createSession(), topic, "another's");
    equal(next(others), "another's");
    equal(next(one, 2), List.of("mine", "another's"));
  }

  static void durableSubscriptions() throws Exception {
    String client = unique("client-id");
    String subject = unique("durable");
    Connection publishing = connect();
    Session publisher = publishing.createSession();
    Topic topic = publisher.createTopic(subject);

    Connection connection = connect("", client);
    Session session = connection.createSession();
    MessageConsumer consumer = session.createDurableSubscriber(topic, "sub");
    send(publisher, topic, "1");
    equal(next(consumer), "1");
    fails(JMSException.class, () -> session.unsubscribe("sub"));  // it is active
    connection.close();

    send(publisher, topic, "2", "3");
    Connection again = connect("", client);
    Session other = again.createSession();
    MessageConsumer back = other.createDurableConsumer(topic, "sub");
    equal(next(back, 2), List.of("2", "3"));
    back.close();
    send(publisher, topic, "4");

    // Another selector is another subscription: the messages of the old one are gone.
    MessageConsumer selective = other.createDurableConsumer(topic, "sub", "colour = 'red'", false);
    Message red = publisher.createTextMessage("red");
    red.setStringProperty("colour", "red");
    MessageProducer producer = publisher.createProducer(topic);
    producer.send(publisher.createTextMessage("colourless"));
    producer.send(red);
    equal(next(selective), "red");
    nothing(selective);
    selective.close();

    other.unsubscribe("sub");
    fails(InvalidDestinationException.class, () -> other.unsubscribe("sub"));
    send(publisher, topic, "5");
    MessageConsumer fresh = other.createDurableConsumer(topic, "sub");
    nothing(fresh);
    fresh.close();
    other.unsubscribe("sub");
  }

  static void sharedSubscriptions() throws Exception {
    String subject = unique("shared");
    Connection publishing = connect();
    Session publisher = publishing.createSession();
    Topic topic = publisher.createTopic(subject);
    String client = unique("client-id");
    Connection connection = connect("?jms.prefetchPolicy.all=1", client);
    Session session = connection.createSession();
    MessageConsumer one = session.createSharedConsumer(topic, "s");
    MessageConsumer two = connection.createSession().createSharedConsumer(topic, "s");
    send(publisher, topic, "a", "b");
    List<String> got = new ArrayList<>(List.of(next(one), next(two)));
    Collections.sort(got);
    equal(got, List.of("a", "b"));
    nothing(one);
    nothing(two);
    one.close();
    two.close();

    MessageConsumer durable = session.createSharedDurableConsumer(topic, "d");
    MessageConsumer second = connection.createSession().createSharedDurableConsumer(topic, "d");
    send(publisher, topic, "c", "d");
    got = new ArrayList<>(List.of(next(durable), next(second)));
    Collections.sort(got);
    equal(got, List.of("c", "d"));
    durable.close();
    second.close();
    send(publisher, topic, "kept");
    MessageConsumer back = session.createSharedDurableConsumer(topic, "d");
    equal(next(back), "kept");
    back.close();
    session.unsubscribe("d");
  }

  static void globalSharedSubscriptions() throws Exception {
    // Without a client-id, the subscription is shared by all.
    Topic topic = connect().createSession().createTopic(unique("global"));
    Connection left = connect("?jms.prefetchPolicy.all=1", null);
    Connection right = connect("?jms.prefetchPolicy.all=1", null);
    String name = unique("sub");
    MessageConsumer one = left.createSession().createSharedDurableConsumer(topic, name);
    MessageConsumer two = right.createSession().createSharedDurableConsumer(topic, name);
    send(connect().createSession(), topic, "a", "b");
    List<String> got = new ArrayList<>(List.of(next(one), next(two)));
    Collections.sort(got);
    equal(got, List.of("a", "b"));
    one.close();
    two.close();
    left.createSession().unsubscribe(name);
  }

  // Connections

  static void oneConnectionOfAClientId() throws Exception {
    String client = unique("only");
    Connection first = connect("", client);
    fails(InvalidClientIDException.class, () -> connect("", client));
    first.close();
    connect("", client);
  }

  static void wrongPasswords() throws Exception {
    fails(JMSSecurityException.class,
        () -> new JmsConnectionFactory(USER, "wrong", "amqp://" + URL.getHost() + ":" + URL.getPort())
            .createConnection().start());
  }

  static void otherVhosts() throws Exception {
    fails(JMSException.class, () -> connect("?amqp.vhost=vhost:nowhere", null));
    Session session = connect("?amqp.vhost=vhost:%252F", null).createSession();
    Queue queue = session.createQueue(unique("vhost"));
    send(session, queue, "here");
    equal(next(connect().createSession().createConsumer(queue)), "here");
  }

  static void mechanisms() throws Exception {
    for (String mechanism : List.of("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")) {
      Session session = connect("?amqp.saslMechanisms=" + mechanism, null).createSession();
      session.close();
    }
    fails(JMSSecurityException.class, () ->
        new JmsConnectionFactory(USER, "wrong", "amqp://" + URL.getHost() + ":" + URL.getPort()
            + "?amqp.saslMechanisms=SCRAM-SHA-256").createConnection().start());
  }

  static void closingAConsumerKeepsTheRest() throws Exception {
    Session session = connect().createSession();
    Queue queue = session.createQueue(unique("rest"));
    send(session, queue, "a", "b", "c");
    MessageConsumer first = session.createConsumer(queue);
    equal(next(first), "a");
    first.close();
    MessageConsumer second = session.createConsumer(queue);
    Message b = second.receive(WITHIN);
    equal(text(b), "b");
    equal(next(second), "c");
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Test> tests = new LinkedHashMap<>();
    tests.put("kinds of messages", Messaging::kindsOfMessages);
    tests.put("properties and headers", Messaging::propertiesAndHeaders);
    tests.put("expired messages do not come", Messaging::expiredMessagesDoNotCome);
    tests.put("priorities come first", Messaging::prioritiesComeFirst);
    tests.put("large messages", Messaging::largeMessages);
    tests.put("many messages in order", Messaging::manyMessagesInOrder);
    tests.put("delayed messages", Messaging::delayedMessages);
    tests.put("unacknowledged messages come again", Messaging::unacknowledgedMessagesComeAgain);
    tests.put("redelivery policy rejects", Messaging::redeliveryPolicyRejects);
    tests.put("listeners", Messaging::listeners);
    tests.put("pulling", Messaging::pulling);
    tests.put("competing consumers", Messaging::competingConsumers);
    tests.put("transactions", Messaging::transactions);
    tests.put("closing rolls back", Messaging::closingRollsBack);
    tests.put("selectors", Messaging::selectors);
    tests.put("browsers", Messaging::browsers);
    tests.put("request and reply", Messaging::requestAndReply);
    tests.put("temporary destinations go", Messaging::temporaryDestinationsGo);
    tests.put("topics", Messaging::topics);
    tests.put("durable subscriptions", Messaging::durableSubscriptions);
    tests.put("shared subscriptions", Messaging::sharedSubscriptions);
    tests.put("global shared subscriptions", Messaging::globalSharedSubscriptions);
    tests.put("one connection of a client-id", Messaging::oneConnectionOfAClientId);
    tests.put("wrong passwords", Messaging::wrongPasswords);
    tests.put("other vhosts", Messaging::otherVhosts);
    tests.put("mechanisms", Messaging::mechanisms);
    tests.put("closing a consumer keeps the rest", Messaging::closingAConsumerKeepsTheRest);
    Sessions.add(tests);
    int passed = 0;
    for (Map.Entry<String, Test> test : tests.entrySet()) {
      if (arguments.length > 0 && !Arrays.asList(arguments).contains(test.getKey())) continue;
      try {
        test.getValue().run();
        System.out.println("ok " + test.getKey());
        passed++;
      } catch (Throwable error) {
        System.out.println("FAILED " + test.getKey() + ": " + error);
        error.printStackTrace(System.out);
      } finally {
        closeAll();
      }
    }
    System.out.println(passed + " of " + tests.size());
    System.exit(passed == tests.size() || arguments.length > 0 ? 0 : 1);
  }
}
