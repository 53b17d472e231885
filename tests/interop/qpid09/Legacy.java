import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Destination;
import javax.jms.InvalidDestinationException;
import javax.jms.JMSException;
import javax.jms.MapMessage;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.ObjectMessage;
import javax.jms.Queue;
import javax.jms.QueueBrowser;
import javax.jms.Session;
import javax.jms.StreamMessage;
import javax.jms.TemporaryQueue;
import javax.jms.TemporaryTopic;
import javax.jms.TextMessage;
import javax.jms.Topic;
import javax.jms.TopicSubscriber;
import org.apache.qpid.client.AMQConnection;
import org.apache.qpid.client.AMQConnectionFactory;
import org.apache.qpid.client.AMQSession;

/** Qpid's old JMS client over AMQP 0-9: one method per subject; prints passed and failed methods. */
public class Legacy {
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

  /** Timeout of one test. */
  static final long LIMIT = 60_000;

  static volatile int numbers = 0;
  static final List<Connection> opened = new ArrayList<>();

  static String unique(String what) {
    return "legacy." + ProcessHandle.current().pid() + "." + what + "." + (++numbers);
  }

  static String address(String user, String password, String clientId, String vhost, String options) {
    return "amqp://" + user + ":" + password + "@" + clientId + vhost + "?brokerlist='tcp://" + URL.getHost() + ":"
        + URL.getPort() + options + "'";
  }

  static AMQConnection connect() throws Exception {
    return connect(unique("client"), "");
  }

  static AMQConnection connect(String clientId, String options) throws Exception {
    AMQConnection connection = (AMQConnection) new AMQConnectionFactory(
        address(USER, PASSWORD, clientId, "/", options)).createConnection();
    opened.add(connection);
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

  static void check(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  static void same(Object expected, Object found) {
    if (expected == null ? found != null : !expected.equals(found)) {
      throw new AssertionError("expected " + expected + ", found " + found);
    }
  }

  static String text(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(WITHIN);
    check(message != null, "no message came");
    return ((TextMessage) message).getText();
  }

  static void nothing(MessageConsumer consumer) throws JMSException {
    Message message = consumer.receive(QUIET);
    check(message == null, "a message came: " + message);
  }

  static void send(Session session, Destination to, String... texts) throws JMSException {
    MessageProducer producer = session.createProducer(to);
    for (String text : texts) producer.send(session.createTextMessage(text));
    producer.close();
  }

  static Queue durable(Session session, String name) throws Exception {
    return session.createQueue(name);
  }

  static void speaks09() throws Exception {
    AMQConnection connection = connect();
    same("0-9", connection.getProtocolVersion().getMajorVersion() + "-" + connection.getProtocolVersion().getMinorVersion());
  }

  static void mechanisms() throws Exception {
    for (String mechanism : new String[] {"PLAIN", "AMQPLAIN"}) {
      Session session = connect(unique("client"), "?sasl_mechs=" + "'" + mechanism + "'").createSession(
          false, Session.AUTO_ACKNOWLEDGE);
      TemporaryQueue queue = session.createTemporaryQueue();
      send(session, queue, mechanism);
      same(mechanism, text(session.createConsumer(queue)));
    }
  }

  static void virtualHosts() throws Exception {
    for (String vhost : new String[] {"/", "/interop"}) {
      Connection connection = new AMQConnectionFactory(address(USER, PASSWORD, "x", vhost, "")).createConnection();
      connection.createSession(false, Session.AUTO_ACKNOWLEDGE).createTemporaryQueue();
      connection.close();
    }
    try {
      new AMQConnectionFactory(address(USER, PASSWORD, "x", "/nowhere", "?retries='0'")).createConnection();
      throw new AssertionError("a vhost that is not there was opened");
    } catch (JMSException expected) {
      check(expected.toString().contains("nowhere"), expected.toString());
    }
  }

  static void temporaryQueues() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    TemporaryQueue queue = session.createTemporaryQueue();
    MessageConsumer consumer = session.createConsumer(queue);
    send(session, queue, "one", "two");
    same("one", text(consumer));
    same("two", text(consumer));
    TextMessage request = session.createTextMessage("request");
    request.setJMSReplyTo(queue);
    Queue service = session.createQueue(unique("service"));
    MessageConsumer server = session.createConsumer(service);
    session.createProducer(service).send(request);
    Message got = server.receive(WITHIN);
    send(session, got.getJMSReplyTo(), "reply");
    same("reply", text(consumer));
    consumer.close();
    queue.delete();
  }

  static void queues() throws Exception {
    String name = unique("queue");
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(name);
    session.createConsumer(queue).close();
    MessageProducer producer = session.createProducer(queue);
    producer.setDeliveryMode(DeliveryMode.PERSISTENT);
    for (int i = 0; i < 100; i++) producer.send(session.createTextMessage("m" + i));
    connection.close();
    Session other = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    MessageConsumer consumer = other.createConsumer(other.createQueue(name));
    for (int i = 0; i < 100; i++) same("m" + i, text(consumer));
    nothing(consumer);
  }

  static void depthAndBindings() throws Exception {
    AMQSession session = (AMQSession) connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    String name = unique("depth");
    org.apache.qpid.client.AMQDestination queue = (org.apache.qpid.client.AMQDestination) session.createQueue(name);
    session.createConsumer((Destination) queue).close();
    send(session, (Destination) queue, "a", "b", "c");
    session.createTemporaryQueue();
    same(3L, session.getQueueDepth(queue));
    check(session.isQueueBound(queue), "the queue is bound");
    check(!session.isQueueBound((org.apache.qpid.client.AMQDestination) session.createQueue(unique("none"))),
        "a queue that is not there is not bound");
  }

  static void addresses() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    String name = unique("address");
    Queue queue = session.createQueue("ADDR:" + name + "; {create: always, node: {type: queue, durable: true}}");
    MessageConsumer consumer = session.createConsumer(queue);
    send(session, queue, "to an address");
    same("to an address", text(consumer));
    consumer.close();
    send(session, session.createQueue("ADDR:" + name), "to what is there");
    same("to what is there", text(session.createConsumer(session.createQueue("ADDR:" + name))));
    Topic topic = session.createTopic("ADDR:amq.topic/" + name);
    MessageConsumer subscriber = session.createConsumer(topic);
    send(session, topic, "to a topic");
    same("to a topic", text(subscriber));
    try {
      session.createConsumer(session.createQueue("ADDR:" + name + ".none; {assert: always, node: {type: queue}}"));
      throw new AssertionError("consumed from a queue that is not there");
    } catch (JMSException expected) {
    }
  }

  static void topics() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    String name = unique("topic");
    Topic topic = session.createTopic(name + ".a");
    MessageConsumer one = session.createConsumer(topic);
    MessageConsumer all = session.createConsumer(session.createTopic(name + ".#"));
    MessageConsumer other = session.createConsumer(session.createTopic(name + ".b"));
    send(session, topic, "hello");
    same("hello", text(one));
    same("hello", text(all));
    nothing(other);
    TemporaryTopic temporary = session.createTemporaryTopic();
    MessageConsumer consumer = session.createConsumer(temporary);
    send(session, temporary, "there");
    same("there", text(consumer));
  }

  static void noLocal() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Topic topic = session.createTopic(unique("local"));
    MessageConsumer consumer = session.createConsumer(topic, null, true);
    send(session, topic, "mine");
    nothing(consumer);
    send(connect().createSession(false, Session.AUTO_ACKNOWLEDGE), topic, "theirs");
    same("theirs", text(consumer));
  }

  static void selectors() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    Topic topic = session.createTopic(unique("selected"));
    MessageConsumer consumer = session.createConsumer(topic, "colour = 'red' AND size > 2");
    MessageProducer producer = session.createProducer(topic);
    for (int size = 1; size < 5; size++) {
      for (String colour : new String[] {"red", "blue"}) {
        TextMessage message = session.createTextMessage(colour + size);
        message.setStringProperty("colour", colour);
        message.setIntProperty("size", size);
        producer.send(message);
      }
    }
    same("red3", text(consumer));
    same("red4", text(consumer));
    nothing(consumer);
    Queue queue = session.createQueue(unique("selected"));
    MessageConsumer red = session.createConsumer(queue, "colour = 'red'");
    MessageProducer toQueue = session.createProducer(queue);
    for (String colour : new String[] {"red", "blue", "red"}) {
      TextMessage message = session.createTextMessage(colour);
      message.setStringProperty("colour", colour);
      toQueue.send(message);
    }
    same("red", text(red));
    same("red", text(red));
    nothing(red);
  }

  static void transactions() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(unique("tx"));
    MessageConsumer consumer = session.createConsumer(queue);
    send(session, queue, "one", "two");
    session.rollback();
    nothing(consumer);
    send(session, queue, "three", "four", "five");
    session.commit();
    same("three", text(consumer));
    same("four", text(consumer));
    session.rollback();
    Message again = consumer.receive(WITHIN);
    same("three", ((TextMessage) again).getText());
    check(again.getJMSRedelivered(), "redelivered");
    same("four", text(consumer));
    session.commit();
    same("five", text(consumer));
    session.commit();
    nothing(consumer);
    session.close();
    Session other = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    nothing(other.createConsumer(queue));
  }

  static void uncommittedWorkComesBack() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(true, Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(unique("tx"));
    MessageConsumer consumer = session.createConsumer(queue);
    send(session, queue, "one");
    session.commit();
    same("one", text(consumer));
    connection.close();
    Session other = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    same("one", text(other.createConsumer(queue)));
  }

  static void recovery() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.CLIENT_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("recover"));
    MessageConsumer consumer = session.createConsumer(queue);
    send(session, queue, "one", "two", "three");
    same("one", text(consumer));
    Message second = consumer.receive(WITHIN);
    same("two", ((TextMessage) second).getText());
    session.recover();
    Message first = consumer.receive(WITHIN);
    same("one", ((TextMessage) first).getText());
    check(first.getJMSRedelivered(), "redelivered");
    same("two", text(consumer));
    Message last = consumer.receive(WITHIN);
    same("three", ((TextMessage) last).getText());
    last.acknowledge();
    session.recover();
    nothing(consumer);
  }

  static void acknowledgement() throws Exception {
    for (int mode : new int[] {Session.AUTO_ACKNOWLEDGE, Session.DUPS_OK_ACKNOWLEDGE, AMQSession.NO_ACKNOWLEDGE}) {
      AMQConnection connection = connect();
      Session session = connection.createSession(false, mode);
      Queue queue = session.createQueue(unique("ack"));
      MessageConsumer consumer = session.createConsumer(queue);
      String[] texts = new String[50];
      for (int i = 0; i < 50; i++) texts[i] = "m" + i;
      send(session, queue, texts);
      for (String expected : texts) same(expected, text(consumer));
      connection.close();
      nothing(connect().createSession(false, Session.AUTO_ACKNOWLEDGE).createConsumer(queue));
    }
  }

  static void browsing() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("browse"));
    session.createConsumer(queue).close();
    send(session, queue, "one", "two", "three");
    for (int round = 0; round < 2; round++) {
      QueueBrowser browser = session.createBrowser(queue);
      List<String> seen = new ArrayList<>();
      for (Object message : Collections.list(browser.getEnumeration())) seen.add(((TextMessage) message).getText());
      same(Arrays.asList("one", "two", "three"), seen);
      browser.close();
    }
    MessageConsumer consumer = session.createConsumer(queue);
    for (String expected : new String[] {"one", "two", "three"}) same(expected, text(consumer));
  }

  static void largeMessages() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("large"));
    MessageConsumer consumer = session.createConsumer(queue);
    MessageProducer producer = session.createProducer(queue);
    for (int size : new int[] {0, 1, 65_528, 65_536, 1 << 20, 20 << 20}) {
      byte[] octets = new byte[size];
      for (int i = 0; i < size; i++) octets[i] = (byte) (i * 31 + i / 256);
      BytesMessage message = session.createBytesMessage();
      message.writeBytes(octets);
      producer.send(message);
      BytesMessage got = (BytesMessage) consumer.receive(WITHIN);
      check(got != null, "no message of " + size + " bytes");
      same((long) size, got.getBodyLength());
      byte[] found = new byte[size];
      got.readBytes(found);
      check(Arrays.equals(octets, found), "the " + size + " bytes differ");
    }
  }

  static void kinds() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("kinds"));
    MessageConsumer consumer = session.createConsumer(queue);
    MessageProducer producer = session.createProducer(queue);

    MapMessage map = session.createMapMessage();
    map.setString("text", "häre");
    map.setInt("int", -7);
    map.setLong("long", 1L << 40);
    map.setDouble("double", 2.5);
    map.setBoolean("true", true);
    map.setBytes("octets", new byte[] {1, 2, 3});
    producer.send(map);
    MapMessage mapGot = (MapMessage) consumer.receive(WITHIN);
    same("häre", mapGot.getString("text"));
    same(-7, mapGot.getInt("int"));
    same(1L << 40, mapGot.getLong("long"));
    same(2.5, mapGot.getDouble("double"));
    check(mapGot.getBoolean("true"), "true");
    check(Arrays.equals(new byte[] {1, 2, 3}, mapGot.getBytes("octets")), "octets");

    ObjectMessage object = session.createObjectMessage(new TreeMap<>(Collections.singletonMap("a", 1)));
    producer.send(object);
    same(Collections.singletonMap("a", 1), ((ObjectMessage) consumer.receive(WITHIN)).getObject());

    StreamMessage stream = session.createStreamMessage();
    stream.writeString("s");
    stream.writeInt(3);
    stream.writeDouble(1.5);
    producer.send(stream);
    StreamMessage streamGot = (StreamMessage) consumer.receive(WITHIN);
    same("s", streamGot.readString());
    same(3, streamGot.readInt());
    same(1.5, streamGot.readDouble());

    TextMessage none = session.createTextMessage();
    producer.send(none);
    same(null, ((TextMessage) consumer.receive(WITHIN)).getText());
    producer.send(session.createMessage());
    check(consumer.receive(WITHIN) != null, "a message without a body");
  }

  static void properties() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("properties"));
    MessageConsumer consumer = session.createConsumer(queue);
    MessageProducer producer = session.createProducer(queue);
    TextMessage message = session.createTextMessage("text");
    message.setJMSCorrelationID("correlation");
    message.setJMSType("type");
    message.setStringProperty("string", "ü");
    message.setBooleanProperty("boolean", true);
    message.setByteProperty("byte", (byte) -5);
    message.setShortProperty("short", (short) -300);
    message.setIntProperty("int", 70000);
    message.setLongProperty("long", 1L << 40);
    message.setFloatProperty("float", 1.5f);
    message.setDoubleProperty("double", 2.25);
    producer.send(message, DeliveryMode.PERSISTENT, 7, 600_000);
    TextMessage got = (TextMessage) consumer.receive(WITHIN);
    same("text", got.getText());
    same(message.getJMSMessageID(), got.getJMSMessageID());
    same("correlation", got.getJMSCorrelationID());
    same("type", got.getJMSType());
    same(7, got.getJMSPriority());
    same(DeliveryMode.PERSISTENT, got.getJMSDeliveryMode());
    same(message.getJMSTimestamp() / 1000, got.getJMSTimestamp() / 1000);
    check(got.getJMSExpiration() > 0, "an expiration");
    same("ü", got.getStringProperty("string"));
    check(got.getBooleanProperty("boolean"), "boolean");
    same((byte) -5, got.getByteProperty("byte"));
    same((short) -300, got.getShortProperty("short"));
    same(70000, got.getIntProperty("int"));
    same(1L << 40, got.getLongProperty("long"));
    same(1.5f, got.getFloatProperty("float"));
    same(2.25, got.getDoubleProperty("double"));
    same(queue.getQueueName(), ((Queue) got.getJMSDestination()).getQueueName());
  }

  static void expiry() throws Exception {
    Session session = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("expiry"));
    session.createConsumer(queue).close();
    MessageProducer producer = session.createProducer(queue);
    producer.setTimeToLive(1);
    producer.send(session.createTextMessage("late"));
    producer.setTimeToLive(0);
    producer.send(session.createTextMessage("kept"));
    Thread.sleep(50);
    same("kept", text(session.createConsumer(queue)));
  }

  static void durableSubscriptions() throws Exception {
    String clientId = unique("subscriber");
    String name = unique("subscription");
    AMQConnection connection = connect(clientId, "");
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Topic topic = session.createTopic(unique("news"));
    TopicSubscriber subscriber = session.createDurableSubscriber(topic, name);
    send(session, topic, "one");
    same("one", text(subscriber));
    subscriber.close();
    send(session, topic, "two");
    connection.close();
    AMQConnection publisher = connect();
    send(publisher.createSession(false, Session.AUTO_ACKNOWLEDGE), topic, "three");
    connection = connect(clientId, "");
    session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    subscriber = session.createDurableSubscriber(topic, name);
    same("two", text(subscriber));
    same("three", text(subscriber));
    subscriber.close();
    session.unsubscribe(name);
    send(session, topic, "four");
    subscriber = session.createDurableSubscriber(topic, name);
    nothing(subscriber);
    subscriber.close();
    session.unsubscribe(name);
    try {
      session.unsubscribe(unique("never"));
      throw new AssertionError("a subscription that never was is unsubscribed");
    } catch (InvalidDestinationException expected) {
    }
  }

  static void listeners() throws Exception {
    AMQConnection connection = connect();
    AtomicReference<JMSException> failure = new AtomicReference<>();
    connection.setExceptionListener(failure::set);
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(unique("listener"));
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    session.createConsumer(queue).setMessageListener(message -> {
      try {
        got.add(((TextMessage) message).getText());
      } catch (JMSException error) {
        got.add(error.toString());
      }
    });
    Session sender = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    for (int i = 0; i < 500; i++) send(sender, queue, "m" + i);
    for (int i = 0; i < 500; i++) same("m" + i, got.poll(WITHIN, TimeUnit.MILLISECONDS));
    same(null, failure.get());
  }

  static void competingConsumers() throws Exception {
    AMQConnection connection = connect();
    Session one = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Session two = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = one.createQueue(unique("competing"));
    BlockingQueue<String> got = new LinkedBlockingQueue<>();
    for (Session session : new Session[] {one, two}) {
      session.createConsumer(queue).setMessageListener(message -> {
        try {
          got.add(((TextMessage) message).getText());
        } catch (JMSException error) {
          got.add(error.toString());
        }
      });
    }
    Session sender = connect().createSession(false, Session.AUTO_ACKNOWLEDGE);
    for (int i = 0; i < 200; i++) send(sender, queue, "m" + i);
    List<String> all = new ArrayList<>();
    for (int i = 0; i < 200; i++) all.add(got.poll(WITHIN, TimeUnit.MILLISECONDS));
    same(200, new java.util.HashSet<>(all).size());
  }

  static void refusals() throws Exception {
    AMQConnection connection = connect();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    try {
      session.createConsumer(new org.apache.qpid.client.AMQQueue("amq.nowhere", unique("none")));
      throw new AssertionError("consumed from an exchange that is not there");
    } catch (JMSException expected) {
    }
  }

  static void unroutable() throws Exception {
    AMQConnection connection = connect();
    BlockingQueue<JMSException> failures = new LinkedBlockingQueue<>();
    connection.setExceptionListener(failures::add);
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    MessageProducer producer = ((AMQSession) session).createProducer(
        session.createQueue(unique("nowhere")), true, false);
    producer.send(session.createTextMessage("lost"));
    JMSException failure = failures.poll(WITHIN, TimeUnit.MILLISECONDS);
    check(failure != null, "no return came");
    check(failure.getLinkedException().getClass().getSimpleName().equals("AMQNoRouteException"),
        String.valueOf(failure.getLinkedException()));
  }

  public static void main(String[] arguments) throws Exception {
    System.setProperty("qpid.amqp.version", "0-9");
    System.setProperty("qpid.dest_syntax", "BURL");
    Object[][] tests = {
      {"speaks 0-9", (Test) Legacy::speaks09}, {"mechanisms", (Test) Legacy::mechanisms},
      {"virtual hosts", (Test) Legacy::virtualHosts}, {"temporary queues", (Test) Legacy::temporaryQueues},
      {"queues", (Test) Legacy::queues}, {"depth and bindings", (Test) Legacy::depthAndBindings},
      {"addresses", (Test) Legacy::addresses}, {"topics", (Test) Legacy::topics}, {"no-local", (Test) Legacy::noLocal}, {"selectors", (Test) Legacy::selectors},
      {"transactions", (Test) Legacy::transactions}, {"uncommitted work", (Test) Legacy::uncommittedWorkComesBack},
      {"recovery", (Test) Legacy::recovery}, {"acknowledgement", (Test) Legacy::acknowledgement},
      {"browsing", (Test) Legacy::browsing}, {"large messages", (Test) Legacy::largeMessages},
      {"kinds of messages", (Test) Legacy::kinds}, {"properties", (Test) Legacy::properties},
      {"expiry", (Test) Legacy::expiry}, {"durable subscriptions", (Test) Legacy::durableSubscriptions},
      {"listeners", (Test) Legacy::listeners},
      {"competing consumers", (Test) Legacy::competingConsumers}, {"refusals", (Test) Legacy::refusals},
      {"unroutable messages", (Test) Legacy::unroutable},
    };
    int passed = 0;
    int failures = 0;
    for (Object[] test : tests) {
      if (arguments.length > 0 && !Arrays.asList(arguments).contains(test[0])) continue;
      AtomicReference<Throwable> failed = new AtomicReference<>();
      Thread thread = new Thread(() -> {
        try {
          ((Test) test[1]).run();
        } catch (Throwable error) {
          failed.set(error);
        }
      });
      thread.setDaemon(true);
      thread.start();
      thread.join(LIMIT);
      if (thread.isAlive()) {
        Throwable error = new AssertionError("not done within " + LIMIT + " ms");
        error.setStackTrace(thread.getStackTrace());
        failed.set(error);
      }
      Throwable error = failed.get();
      if (error == null) {
        System.out.println("ok " + test[0]);
        passed++;
      } else {
        failures++;
        System.out.println("FAILED " + test[0] + ": " + error);
        for (StackTraceElement element : error.getStackTrace()) System.out.println("    " + element);
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) System.out.println("  by " + cause);
        if (error instanceof JMSException) System.out.println("  linked " + ((JMSException) error).getLinkedException());
      }
      closeAll();
    }
    System.out.println(passed + " passed");
    System.exit(failures == 0 ? 0 : 1);
  }
}
