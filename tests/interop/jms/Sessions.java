import jakarta.jms.CompletionListener;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.Destination;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TemporaryQueue;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** JMS sessions, their acknowledgement modes and message headers, in addition to `Messaging`. */
final class Sessions {
  /** Qpid JMS's own mode. */
  private static final int INDIVIDUAL_ACKNOWLEDGE = 101;

  private Sessions() {}

  static void add(Map<String, Messaging.Test> tests) {
    tests.put("acknowledging acknowledges the whole session", Sessions::clientAcknowledgement);
    tests.put("individual acknowledgement", Sessions::individualAcknowledgement);
    tests.put("DUPS_OK acknowledges in time", Sessions::dupsOk);
    tests.put("what a lost session held comes in order", Sessions::lostSession);
    tests.put("a transaction over several queues", Sessions::manyQueues);
    tests.put("large transactions", Sessions::largeTransactions);
    tests.put("transactions of settled messages", Sessions::settledInTransactions);
    tests.put("settled messages", Sessions::settled);
    tests.put("sending without waiting", Sessions::completion);
    tests.put("selectors over headers and properties", Sessions::selectors);
    tests.put("a selector leaves the rest in its order", Sessions::selectorOrder);
    tests.put("who waits gets nothing that has expired", Sessions::expiry);
    tests.put("priorities with several consumers", Sessions::priorities);
    tests.put("headers of replies", Sessions::replies);
    tests.put("a temporary queue goes with its connection", Sessions::temporaryQueue);
    tests.put("a durable subscription in a transaction", Sessions::durableTransaction);
    tests.put("a connection that is not started", Sessions::stopped);
    tests.put("producers without a destination", Sessions::anonymous);
  }

  private static void send(Session session, Destination destination, int count) throws JMSException {
    MessageProducer producer = session.createProducer(destination);
    for (int number = 0; number < count; number++) producer.send(session.createTextMessage("" + number));
    producer.close();
  }

  private static List<String> numbers(int from, int to) {
    List<String> numbers = new ArrayList<>();
    for (int number = from; number < to; number++) numbers.add("" + number);
    return numbers;
  }

  // Acknowledgement

  static void clientAcknowledgement() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    Queue one = session.createQueue(Messaging.unique("ack"));
    Queue two = session.createQueue(Messaging.unique("ack"));
    send(session, one, 4);
    send(session, two, 2);
    MessageConsumer first = session.createConsumer(one);
    MessageConsumer second = session.createConsumer(two);
    Message oldest = first.receive(Messaging.WITHIN);
    Messaging.equal(Messaging.next(first), "1");
    Messaging.equal(Messaging.next(second), "0");
    // Acknowledging any message acknowledges everything that the session received.
    oldest.acknowledge();
    Messaging.equal(Messaging.next(first), "2");
    session.close();
    Session other = connection.createSession();
    MessageConsumer rest = other.createConsumer(one);
    Message again = rest.receive(Messaging.WITHIN);
    Messaging.equal(Messaging.text(again), "2");
    Messaging.equal(again.getJMSRedelivered(), true);
    Messaging.equal(Messaging.next(rest), "3");
    Messaging.equal(Messaging.next(other.createConsumer(two)), "1");
    Messaging.nothing(rest);
  }

  static void individualAcknowledgement() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(INDIVIDUAL_ACKNOWLEDGE);
    Queue queue = session.createQueue(Messaging.unique("individual"));
    send(session, queue, 4);
    MessageConsumer consumer = session.createConsumer(queue);
    List<Message> messages = new ArrayList<>();
    for (int number = 0; number < 4; number++) messages.add(consumer.receive(Messaging.WITHIN));
    messages.get(2).acknowledge();
    messages.get(0).acknowledge();
    session.close();
    MessageConsumer rest = connection.createSession().createConsumer(queue);
    Messaging.equal(Messaging.next(rest, 2), List.of("1", "3"));
    Messaging.nothing(rest);
  }

  static void dupsOk() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(Session.DUPS_OK_ACKNOWLEDGE);
    Queue queue = session.createQueue(Messaging.unique("dups-ok"));
    send(session, queue, 20);
    MessageConsumer consumer = session.createConsumer(queue);
    Messaging.equal(Messaging.next(consumer, 20), numbers(0, 20));
    session.close();
    Messaging.nothing(connection.createSession().createConsumer(queue));
  }

  static void lostSession() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    Queue queue = session.createQueue(Messaging.unique("lost"));
    send(session, queue, 10);
    MessageConsumer consumer = session.createConsumer(queue);
    Messaging.equal(Messaging.next(consumer, 5), numbers(0, 5));
    connection.close();
    Session other = Messaging.connect().createSession();
    MessageConsumer rest = other.createConsumer(queue);
    for (int number = 0; number < 10; number++) {
      Message message = rest.receive(Messaging.WITHIN);
      Messaging.equal(Messaging.text(message), "" + number);
      // Prefetched messages may count as delivered; received ones do.
      if (number < 5) Messaging.equal(message.getJMSRedelivered(), true);
    }
  }

  // Transactions

  static void manyQueues() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue source = session.createQueue(Messaging.unique("source"));
    List<Queue> targets = new ArrayList<>();
    for (int number = 0; number < 3; number++) targets.add(session.createQueue(Messaging.unique("target")));
    send(session, source, 6);
    session.commit();
    MessageConsumer consumer = session.createConsumer(source);
    Session watching = connection.createSession();
    for (boolean commits : new boolean[] {false, true}) {
      for (int number = 0; number < 6; number++) {
        Messaging.send(session, targets.get(number % 3), Messaging.next(consumer));
      }
      if (commits) session.commit();
      else session.rollback();
      for (int number = 0; number < 3; number++) {
        List<String> wanted = commits ? List.of("" + number, "" + (number + 3)) : List.of();
        Messaging.equal(Messaging.browse(watching, targets.get(number), null), wanted);
      }
    }
    session.close();
    Messaging.equal(Messaging.browse(watching, source, null), List.of());
  }

  static void largeTransactions() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(Messaging.unique("large"));
    send(session, queue, 500);
    session.commit();
    MessageConsumer consumer = session.createConsumer(queue);
    Messaging.equal(Messaging.next(consumer, 500), numbers(0, 500));
    session.rollback();
    Messaging.equal(Messaging.next(consumer, 500), numbers(0, 500));
    session.commit();
    session.close();
    Messaging.nothing(connection.createSession().createConsumer(queue));
  }

  static void settledInTransactions() throws Exception {
    Connection connection = Messaging.connect("?jms.presettlePolicy.presettleTransactedProducers=true", null);
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Queue queue = session.createQueue(Messaging.unique("settled-tx"));
    send(session, queue, 3);
    session.rollback();
    send(session, queue, 5);
    session.commit();
    MessageConsumer consumer = connection.createSession().createConsumer(queue);
    Messaging.equal(Messaging.next(consumer, 5), numbers(0, 5));
    Messaging.nothing(consumer);
  }

  static void settled() throws Exception {
    Connection connection = Messaging.connect("?jms.presettlePolicy.presettleAll=true", null);
    Session session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    Queue queue = session.createQueue(Messaging.unique("settled"));
    send(session, queue, 50);
    MessageConsumer consumer = session.createConsumer(queue);
    Messaging.equal(Messaging.next(consumer, 50), numbers(0, 50));
    // Nothing is acknowledged, and nothing is redelivered.
    session.close();
    Messaging.nothing(Messaging.connect().createSession().createConsumer(queue));
  }

  static void completion() throws Exception {
    Session session = Messaging.connect().createSession();
    Queue queue = session.createQueue(Messaging.unique("completion"));
    MessageProducer producer = session.createProducer(queue);
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    CompletionListener listener = new CompletionListener() {
      @Override
      public void onCompletion(Message message) {
        try {
          events.add(((TextMessage) message).getText());
        } catch (JMSException error) {
          events.add(error.toString());
        }
      }

      @Override
      public void onException(Message message, Exception error) {
        events.add(error.toString());
      }
    };
    for (int number = 0; number < 200; number++) producer.send(session.createTextMessage("" + number), listener);
    for (int number = 0; number < 200; number++) {
      Messaging.equal(events.poll(Messaging.WITHIN, TimeUnit.MILLISECONDS), "" + number);
    }
    Messaging.equal(Messaging.browse(session, queue, null).size(), 200);
  }

  // Messages

  static void selectors() throws Exception {
    Session session = Messaging.connect().createSession();
    Queue queue = session.createQueue(Messaging.unique("selectors"));
    MessageProducer producer = session.createProducer(queue);
    for (int number = 0; number < 8; number++) {
      TextMessage message = session.createTextMessage("" + number);
      message.setJMSCorrelationID("c" + number % 4);
      message.setJMSType(number < 4 ? "low" : "high");
      message.setDoubleProperty("weight", number / 2.0);
      message.setBooleanProperty("even", number % 2 == 0);
      if (number == 3) message.setStringProperty("note", "it's 100%");
      producer.send(message, number % 2 == 0 ? DeliveryMode.PERSISTENT : DeliveryMode.NON_PERSISTENT, number, 0);
    }
    String[][] expected = {
      {"JMSCorrelationID = 'c1'", "5", "1"},
      {"JMSType IN ('high', 'other') AND even", "6", "4"},
      {"JMSPriority > 5", "7", "6"},
      {"JMSDeliveryMode = 'NON_PERSISTENT' AND weight < 1", "1"},
      {"weight BETWEEN 1 AND 1.5", "3", "2"},
      {"note IS NOT NULL", "3"},
      {"note LIKE 'it''s 100#%' ESCAPE '#'", "3"},
      {"NOT even AND JMSType <> 'low'", "7", "5"},
      {"weight * 2 = 7 OR JMSCorrelationID LIKE '_0'", "7", "4", "0"},
      {"missing = 1"},
      {"missing IS NULL AND JMSMessageID LIKE 'ID:%'", "7", "6", "5", "4", "3", "2", "1", "0"},
    };
    for (String[] one : expected) {
      List<String> wanted = List.of(one).subList(1, one.length);
      List<String> got = Messaging.browse(session, queue, one[0]);
      if (!got.equals(wanted)) throw new AssertionError(one[0] + ": got " + got + ", wanted " + wanted);
    }
  }

  static void selectorOrder() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession();
    Queue queue = session.createQueue(Messaging.unique("selector-order"));
    MessageProducer producer = session.createProducer(queue);
    for (int number = 0; number < 100; number++) {
      TextMessage message = session.createTextMessage("" + number);
      message.setIntProperty("third", number % 3);
      producer.send(message);
    }
    for (int third = 2; third >= 0; third--) {
      MessageConsumer consumer = session.createConsumer(queue, "third = " + third);
      for (int number = third; number < 100; number += 3) Messaging.equal(Messaging.next(consumer), "" + number);
      consumer.close();
    }
    Messaging.equal(Messaging.browse(session, queue, null), List.of());
  }

  static void expiry() throws Exception {
    Session session = Messaging.connect().createSession();
    Queue queue = session.createQueue(Messaging.unique("expiry"));
    MessageProducer producer = session.createProducer(queue);
    producer.setTimeToLive(40);
    producer.send(session.createTextMessage("brief"));
    producer.setTimeToLive(600_000);
    long before = System.currentTimeMillis();
    TextMessage lasting = session.createTextMessage("lasting");
    producer.send(lasting);
    producer.setTimeToLive(0);
    producer.send(session.createTextMessage("for ever"));
    // The broker drops it: a browser does not show it either, once it has expired.
    for (long deadline = before + Messaging.WITHIN; Messaging.browse(session, queue, null).size() > 2; Thread.sleep(10)) {
      Messaging.truth(System.currentTimeMillis() < deadline, "nothing expires");
    }
    MessageConsumer consumer = session.createConsumer(queue);
    Message got = consumer.receive(Messaging.WITHIN);
    Messaging.equal(Messaging.text(got), "lasting");
    Messaging.equal(got.getJMSExpiration(), lasting.getJMSExpiration());
    Messaging.truth(got.getJMSExpiration() >= before + 600_000, "the expiry is the sender's time and its time to live");
    got = consumer.receive(Messaging.WITHIN);
    Messaging.equal(Messaging.text(got), "for ever");
    Messaging.equal(got.getJMSExpiration(), 0L);
  }

  static void priorities() throws Exception {
    Connection connection = Messaging.connect("?jms.prefetchPolicy.all=0", null);
    Session session = connection.createSession();
    Queue queue = session.createQueue(Messaging.unique("priorities"));
    MessageProducer producer = session.createProducer(queue);
    for (int round = 0; round < 2; round++) {
      for (int priority : new int[] {4, 0, 9, 5}) {
        producer.send(session.createTextMessage(priority + "." + round), DeliveryMode.PERSISTENT, priority, 0);
      }
    }
    MessageConsumer[] consumers = {session.createConsumer(queue), connection.createSession().createConsumer(queue)};
    List<String> got = new ArrayList<>();
    for (int number = 0; number < 8; number++) {
      Message message = consumers[number % 2].receive(Messaging.WITHIN);
      got.add(Messaging.text(message));
      Messaging.equal("" + message.getJMSPriority(), got.get(number).substring(0, 1));
    }
    Messaging.equal(got, List.of("9.0", "9.1", "5.0", "5.1", "4.0", "4.1", "0.0", "0.1"));
  }

  static void replies() throws Exception {
    Session session = Messaging.connect().createSession();
    Queue queue = session.createQueue(Messaging.unique("replies"));
    Topic topic = session.createTopic(Messaging.unique("replies"));
    MessageConsumer consumer = session.createConsumer(queue);
    MessageProducer producer = session.createProducer(queue);
    for (Destination reply : new Destination[] {queue, topic, session.createTemporaryQueue(), session.createTemporaryTopic(), null}) {
      TextMessage message = session.createTextMessage("x");
      message.setJMSReplyTo(reply);
      message.setJMSCorrelationIDAsBytes(new byte[] {0, 1, -1});
      producer.send(message);
      Message got = consumer.receive(Messaging.WITHIN);
      Messaging.equal(got.getJMSReplyTo(), reply);
      Messaging.equal(got.getJMSDestination(), queue);
      Messaging.equal(got.getJMSMessageID(), message.getJMSMessageID());
      Messaging.equal(got.getJMSTimestamp(), message.getJMSTimestamp());
      Messaging.equal(List.of(got.getJMSCorrelationIDAsBytes()[2]), List.of((byte) -1));
    }
    producer.setDisableMessageID(true);
    producer.setDisableMessageTimestamp(true);
    producer.send(session.createTextMessage("bare"));
    Message bare = consumer.receive(Messaging.WITHIN);
    Messaging.equal(bare.getJMSMessageID(), null);
    Messaging.equal(bare.getJMSTimestamp(), 0L);
  }

  // Destinations

  static void temporaryQueue() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession();
    TemporaryQueue queue = session.createTemporaryQueue();
    Session other = Messaging.connect().createSession();
    MessageProducer producer = other.createProducer(queue);
    producer.send(other.createTextMessage("a"));
    Messaging.equal(Messaging.next(session.createConsumer(queue)), "a");
    // Only its own connection consumes from it.
    Messaging.fails(JMSException.class, () -> other.createConsumer(queue));
    connection.close();
    Messaging.fails(JMSException.class, () -> {
      for (int number = 0; number < 100; number++) producer.send(other.createTextMessage("discarded"));
    });
  }

  static void durableTransaction() throws Exception {
    String client = Messaging.unique("client");
    Connection connection = Messaging.connect("", client);
    Session session = connection.createSession(Session.SESSION_TRANSACTED);
    Topic topic = session.createTopic(Messaging.unique("durable-tx"));
    MessageConsumer consumer = session.createDurableConsumer(topic, "sub");
    send(session, topic, 3);
    Messaging.nothing(consumer);
    session.commit();
    Messaging.equal(Messaging.next(consumer, 2), numbers(0, 2));
    session.commit();
    Messaging.equal(Messaging.next(consumer), "2");
    connection.close();
    Connection again = Messaging.connect("", client);
    Session other = again.createSession();
    MessageConsumer rest = other.createDurableConsumer(topic, "sub");
    Messaging.equal(Messaging.next(rest), "2");
    Messaging.nothing(rest);
    rest.close();
    other.unsubscribe("sub");
  }

  static void stopped() throws Exception {
    Connection connection = Messaging.connect();
    Session session = connection.createSession();
    Queue queue = session.createQueue(Messaging.unique("stopped"));
    MessageConsumer consumer = session.createConsumer(queue);
    connection.stop();
    send(session, queue, 3);
    Messaging.nothing(consumer);
    connection.start();
    Messaging.equal(Messaging.next(consumer, 3), numbers(0, 3));
  }

  static void anonymous() throws Exception {
    Session session = Messaging.connect().createSession();
    MessageProducer producer = session.createProducer(null);
    Topic topic = session.createTopic(Messaging.unique("anonymous"));
    MessageConsumer listener = session.createConsumer(topic);
    List<Queue> queues = new ArrayList<>();
    for (int number = 0; number < 3; number++) queues.add(session.createQueue(Messaging.unique("anonymous")));
    for (int number = 0; number < 30; number++) producer.send(queues.get(number % 3), session.createTextMessage("" + number / 3));
    producer.send(topic, session.createTextMessage("topic"));
    for (Queue queue : queues) Messaging.equal(Messaging.next(session.createConsumer(queue), 10), numbers(0, 10));
    Messaging.equal(Messaging.next(listener), "topic");
    Messaging.fails(UnsupportedOperationException.class, () -> producer.send(session.createTextMessage("nowhere")));
  }
}
