import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.URI;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** Broker features as documented by RabbitMQ and its Java client, one method per feature. */
final class Functional {
  private Functional() {}

  static void add(Map<String, Interop.Test> tests) {
    tests.put("an exclusive queue is its connection's", Functional::exclusiveQueues);
    tests.put("an auto-delete queue goes with its last consumer", Functional::autoDeleteQueues);
    tests.put("an alternate exchange gets what has no route", Functional::alternateExchange);
    tests.put("an alternate exchange that is not there", Functional::missingAlternateExchange);
    tests.put("dead letters of rejected, expired and surplus messages", Functional::deadLetterReasons);
    tests.put("dead letters keep their keys", Functional::deadLetterKeys);
    tests.put("dead letters are counted", Functional::deadLetterCounts);
    tests.put("a dead-letter exchange that is not there", Functional::missingDeadLetterExchange);
    tests.put("a cycle of expiries ends", Functional::deadLetterCycle);
    tests.put("the shorter time to live counts", Functional::timeToLive);
    tests.put("times to live that are none", Functional::invalidTimesToLive);
    tests.put("an unused queue expires", Functional::queueLease);
    tests.put("requeued messages keep their place", Functional::requeueOrder);
    tests.put("settled twice", Functional::settledTwice);
    tests.put("redelivered after the channel's end", Functional::redelivery);
    tests.put("confirms and returns", Functional::confirmsAndReturns);
    tests.put("channels are transactional or confirm", Functional::modes);
    tests.put("acknowledgements in transactions", Functional::transactionalAcknowledgements);
    tests.put("headers exchanges", Functional::headersExchange);
    tests.put("topic patterns", Functional::topics);
    tests.put("CC and BCC", Functional::senderSelectedDistribution);
    tests.put("direct replies", Functional::directReplies);
    tests.put("direct replies that are refused", Functional::refusedDirectReplies);
    tests.put("consumers are told of their cancellation", Functional::cancelNotifications);
    tests.put("consumer priorities", Functional::consumerPriorities);
    tests.put("a single active consumer", Functional::singleActiveConsumer);
    tests.put("exclusive consumers", Functional::exclusiveConsumers);
    tests.put("max-length drops the oldest", Functional::maxLength);
    tests.put("max-length refuses publishes", Functional::rejectPublish);
    tests.put("priorities", Functional::priorities);
    tests.put("exchanges bound to exchanges", Functional::exchangeBindings);
    tests.put("auto-delete exchanges", Functional::autoDeleteExchanges);
    tests.put("frames of the least size", Functional::smallFrames);
    tests.put("no more channels than agreed", Functional::channelMax);
    tests.put("prefetch counts", Functional::prefetch);
    tests.put("404", Functional::notFound);
    tests.put("403", Functional::accessRefused);
    tests.put("406", Functional::preconditionFailed);
    tests.put("530", Functional::notAllowed);
    tests.put("a channel number is used again", Functional::reusedNumber);
    tests.put("methods without an answer", Functional::noWait);
    tests.put("no name means the last queue", Functional::lastQueue);
    tests.put("counts of messages and consumers", Functional::counts);
    tests.put("a connection recovers with its topology", Functional::recovery);
  }

  // Helpers

  private static Map<String, Object> map(Object... pairs) {
    Map<String, Object> made = new HashMap<>();
    for (int n = 0; n < pairs.length; n += 2) made.put((String) pairs[n], pairs[n + 1]);
    return made;
  }

  private static AMQP.BasicProperties headers(Object... pairs) {
    return new AMQP.BasicProperties.Builder().headers(map(pairs)).build();
  }

  private static AMQP.BasicProperties expiring(String expiration) {
    return new AMQP.BasicProperties.Builder().expiration(expiration).build();
  }

  private static void publish(Channel channel, String queue, String... bodies) throws IOException {
    for (String body : bodies) channel.basicPublish("", queue, null, Interop.bytes(body));
  }

  /** The messages in the queue. */
  private static List<String> drain(Channel channel, String queue) throws IOException {
    List<String> bodies = new ArrayList<>();
    for (GetResponse got = channel.basicGet(queue, true); got != null; got = channel.basicGet(queue, true)) {
      bodies.add(Interop.text(got.getBody()));
    }
    return bodies;
  }

  /** The next messages, when they have arrived. */
  private static List<String> next(Channel channel, String queue, int count) throws Exception {
    List<String> bodies = new ArrayList<>();
    while (bodies.size() < count) bodies.add(Interop.text(Interop.take(channel, queue, true).getBody()));
    return bodies;
  }

  /** A consumer that keeps its messages. */
  private static final class Inbox {
    final BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
    final BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
    final String tag;

    Inbox(Channel channel, String queue, boolean autoAck, Object... arguments) throws IOException {
      this(channel, queue, autoAck, false, map(arguments));
    }

    static Inbox exclusive(Channel channel, String queue) throws IOException {
      return new Inbox(channel, queue, true, true, map());
    }

    private Inbox(Channel channel, String queue, boolean autoAck, boolean exclusive, Map<String, Object> arguments)
        throws IOException {
      tag = channel.basicConsume(queue, autoAck, "", false, exclusive, arguments,
          (consumer, delivery) -> deliveries.add(delivery), cancelled::add);
    }

    List<String> next(int count) throws Exception {
      List<String> bodies = new ArrayList<>();
      while (bodies.size() < count) bodies.add(Interop.text(Interop.await(deliveries).getBody()));
      return bodies;
    }

    /** No message has arrived or is in transit: a message through a separate queue has arrived since. */
    void nothing(Channel channel) throws Exception {
      String probe = Interop.exclusive(channel, null);
      Inbox last = new Inbox(channel, probe, true);
      publish(channel, probe, "probe");
      last.next(1);
      channel.basicCancel(last.tag);
      Interop.equal(deliveries.size(), 0);
    }
  }

  private interface Action {
    Object run(Channel channel) throws Exception;
  }

  /** The action closes a channel of a separate connection with the code, and the connection with a code above 499. */
  private static void refused(int code, Action action) throws Exception {
    Connection connection = Interop.factory().newConnection();
    try {
      Channel channel = connection.createChannel();
      Interop.refused(code, () -> {
        action.run(channel);
        return channel.queueDeclarePassive("amq.nothing of that name, to have an answer");
      });
      Interop.equal(connection.isOpen(), code < 500);
    } finally {
      if (connection.isOpen()) connection.close();
    }
  }

  private static boolean exists(Connection connection, String queue) throws Exception {
    Channel channel = connection.createChannel();
    try {
      channel.queueDeclarePassive(queue);
      channel.close();
      return true;
    } catch (IOException error) {
      return false;
    }
  }

  /** RabbitMQ may count before it has handled earlier input. */
  private static void awaitCount(Channel channel, String queue, long count) throws Exception {
    for (long deadline = System.currentTimeMillis() + Interop.WITHIN; channel.messageCount(queue) != count; Thread.sleep(10)) {
      if (System.currentTimeMillis() > deadline) {
        throw new AssertionError(queue + " has " + channel.messageCount(queue) + " messages, wanted " + count);
      }
    }
  }

  private static void awaitGone(Connection connection, String queue) throws Exception {
    for (long deadline = System.currentTimeMillis() + Interop.WITHIN; exists(connection, queue); Thread.sleep(20)) {
      if (System.currentTimeMillis() > deadline) throw new AssertionError(queue + " is still there");
    }
  }

  // Queues

  static void exclusiveQueues(Channel channel) throws Exception {
    String queue;
    try (Connection owner = Interop.factory().newConnection()) {
      Channel own = owner.createChannel();
      queue = own.queueDeclare(Interop.unique("exclusive"), false, true, false, null).getQueue();
      owner.createChannel().queueDeclare(queue, false, true, false, null);
      Inbox inbox = new Inbox(own, queue, true);
      own.basicCancel(inbox.tag);
      String name = queue;
      refused(405, other -> other.queueDeclarePassive(name));
      refused(405, other -> other.queueDeclare(name, false, true, false, null));
      refused(405, other -> other.queueDeclare(name, false, false, false, null));
      refused(405, other -> other.basicGet(name, true));
      refused(405, other -> other.basicConsume(name, (tag, delivery) -> {}, tag -> {}));
      refused(405, other -> other.queuePurge(name));
      refused(405, other -> other.queueDelete(name));
      refused(405, other -> other.queueBind(name, "amq.direct", ""));
      refused(405, ignored -> own.queueDeclare(name, false, false, false, null));
      publish(channel, queue, "publishing is for everybody");
      Interop.equal(next(owner.createChannel(), queue, 1), List.of("publishing is for everybody"));
    }
    awaitGone(channel.getConnection(), queue);
  }

  static void autoDeleteQueues(Channel channel) throws Exception {
    Connection connection = channel.getConnection();
    String queue = channel.queueDeclare(Interop.unique("auto-delete"), false, false, true, null).getQueue();
    publish(channel, queue, "a");
    Interop.equal(drain(channel, queue), List.of("a"));
    Interop.equal(exists(connection, queue), true);
    Channel other = connection.createChannel();
    Inbox first = new Inbox(channel, queue, true);
    new Inbox(other, queue, true);
    channel.basicCancel(first.tag);
    Interop.equal(exists(connection, queue), true);
    other.close();
    awaitGone(connection, queue);
  }

  static void queueLease(Channel channel) throws Exception {
    Connection connection = channel.getConnection();
    String idle = channel.queueDeclare(Interop.unique("lease"), false, false, false, map("x-expires", 150)).getQueue();
    long declared = System.currentTimeMillis();
    String used = channel.queueDeclare(Interop.unique("lease"), false, false, false, map("x-expires", 150)).getQueue();
    Inbox inbox = new Inbox(channel, used, true);
    // A passive declare is a use, too.
    while (exists(connection, idle)) Thread.sleep(200);
    Interop.equal(System.currentTimeMillis() - declared >= 150, true);
    Interop.equal(exists(connection, used), true);
    channel.basicCancel(inbox.tag);
    while (exists(connection, used)) Thread.sleep(200);
    for (Object value : Arrays.asList(0, -1, "soon")) {
      refused(406, other -> other.queueDeclare("", false, false, false, map("x-expires", value)));
    }
  }

  static void lastQueue(Channel channel) throws Exception {
    String queue = channel.queueDeclare().getQueue();
    channel.queueBind("", "amq.direct", queue + ".key");
    channel.basicPublish("amq.direct", queue + ".key", null, Interop.bytes("a"));
    Interop.equal(drain(channel, ""), List.of("a"));
    refused(404, other -> other.basicGet("", true));
  }

  static void counts(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    publish(channel, queue, "1", "2", "3", "4");
    GetResponse got = channel.basicGet(queue, false);
    Interop.equal(got.getMessageCount(), 3);
    AMQP.Queue.DeclareOk state = channel.queueDeclarePassive(queue);
    Interop.equal(state.getMessageCount(), 3);
    Interop.equal(state.getConsumerCount(), 0);
    channel.basicQos(1);
    new Inbox(channel, queue, false);
    Interop.equal(channel.consumerCount(queue), 1L);
    // Unacked messages are not purged.
    awaitCount(channel, queue, 2);
    Interop.equal(channel.queuePurge(queue).getMessageCount(), 2);
    channel.basicNack(got.getEnvelope().getDeliveryTag(), false, true);
    awaitCount(channel, queue, 1);
    Interop.equal(channel.queueDelete(queue).getMessageCount(), 1);
    Interop.equal(channel.queueDelete(queue).getMessageCount(), 0);
  }

  static void noWait(Channel channel) throws Exception {
    String queue = Interop.unique("no-wait");
    String exchange = Interop.unique("no-wait");
    channel.exchangeDeclareNoWait(exchange, "direct", false, true, false, null);
    channel.queueDeclareNoWait(queue, false, true, false, null);
    channel.queueBindNoWait(queue, exchange, "k", null);
    channel.basicPublish(exchange, "k", null, Interop.bytes("a"));
    Interop.equal(drain(channel, queue), List.of("a"));
    channel.queueDeleteNoWait(queue, false, false);
    channel.exchangeDeleteNoWait(exchange, false);
    Interop.equal(exists(channel.getConnection(), queue), false);
  }

  // Routing

  static void alternateExchange(Channel channel) throws Exception {
    String last = Interop.unique("ae");
    String middle = Interop.unique("ae");
    String first = Interop.unique("ae");
    channel.exchangeDeclare(last, BuiltinExchangeType.FANOUT, false, true, null);
    channel.exchangeDeclare(middle, "direct", false, true, map("alternate-exchange", last));
    channel.exchangeDeclare(first, "direct", false, true, map("alternate-exchange", middle));
    String[] queues = {Interop.exclusive(channel, null), Interop.exclusive(channel, null), Interop.exclusive(channel, null)};
    channel.queueBind(queues[0], first, "1");
    channel.queueBind(queues[1], middle, "2");
    channel.queueBind(queues[2], last, "");
    for (String key : Arrays.asList("1", "2", "3")) channel.basicPublish(first, key, true, null, Interop.bytes(key));
    for (int n = 0; n < 3; n++) Interop.equal(next(channel, queues[n], 1), List.of("" + (n + 1)));
    for (String queue : queues) Interop.equal(drain(channel, queue), List.of());
    // Two exchanges that are each other's alternate lose only messages that neither routes.
    String one = Interop.unique("ae");
    String two = Interop.unique("ae");
    channel.exchangeDeclare(one, "direct", false, true, map("alternate-exchange", two));
    channel.exchangeDeclare(two, "direct", false, true, map("alternate-exchange", one));
    channel.queueBind(queues[0], two, "there");
    channel.basicPublish(one, "there", null, Interop.bytes("there"));
    channel.basicPublish(one, "nowhere", null, Interop.bytes("nowhere"));
    Interop.equal(next(channel, queues[0], 1), List.of("there"));
    Interop.equal(drain(channel, queues[0]), List.of());
    refused(406, other -> other.exchangeDeclare(first, "direct", false, true, map("alternate-exchange", last)));
  }

  static void missingAlternateExchange(Channel channel) throws Exception {
    String exchange = Interop.unique("ae");
    channel.exchangeDeclare(exchange, "fanout", false, true, map("alternate-exchange", Interop.unique("missing")));
    BlockingQueue<Integer> returned = new LinkedBlockingQueue<>();
    channel.addReturnListener((code, text, from, key, properties, body) -> returned.add(code));
    channel.basicPublish(exchange, "", true, null, Interop.bytes("x"));
    Interop.equal(Interop.await(returned), 312);
    // Its name must be a string.
    refused(406, other -> other.exchangeDeclare(Interop.unique("ae"), "fanout", false, true, map("alternate-exchange", 5)));
  }

  static void headersExchange(Channel channel) throws Exception {
    String exchange = Interop.unique("headers");
    channel.exchangeDeclare(exchange, "headers", false, true, null);
    Map<String, String> queues = new HashMap<>();
    Map<String, Map<String, Object>> bindings = new HashMap<>();
    bindings.put("all", map("x-match", "all", "a", 1, "b", "two"));
    bindings.put("default", map("a", 1, "b", "two"));
    bindings.put("any", map("x-match", "any", "a", 1, "b", "two"));
    bindings.put("presence", map("x-match", "all", "a", null));
    bindings.put("with-x", map("x-match", "all-with-x", "x-a", 1));
    bindings.put("any-with-x", map("x-match", "any-with-x", "x-a", 1, "a", 7));
    bindings.put("without-x", map("x-match", "all", "x-a", 9, "a", 1));
    for (String kind : bindings.keySet()) {
      queues.put(kind, Interop.exclusive(channel, null));
      channel.queueBind(queues.get(kind), exchange, "ignored", bindings.get(kind));
    }
    channel.basicPublish(exchange, "k", headers("a", 1, "b", "two", "c", true), Interop.bytes("both"));
    channel.basicPublish(exchange, "k", headers("a", 1), Interop.bytes("a"));
    channel.basicPublish(exchange, "k", headers("b", "two"), Interop.bytes("b"));
    channel.basicPublish(exchange, "k", headers("a", "1"), Interop.bytes("text"));
    channel.basicPublish(exchange, "k", headers("x-a", 1), Interop.bytes("x"));
    channel.basicPublish(exchange, "k", null, Interop.bytes("none"));
    Interop.equal(drain(channel, queues.get("all")), List.of("both"));
    Interop.equal(drain(channel, queues.get("default")), List.of("both"));
    Interop.equal(drain(channel, queues.get("any")), List.of("both", "a", "b"));
    Interop.equal(drain(channel, queues.get("presence")), List.of("both", "a", "text"));
    Interop.equal(drain(channel, queues.get("with-x")), List.of("x"));
    Interop.equal(drain(channel, queues.get("any-with-x")), List.of("x"));
    Interop.equal(drain(channel, queues.get("without-x")), List.of("both", "a"));
    String queue = queues.get("all");
    refused(406, other -> other.queueBind(publicQueue(other), exchange, "", map("x-match", "some")));
    refused(406, other -> other.queueBind(publicQueue(other), exchange, "", map("x-match", 1)));
    channel.queueUnbind(queue, exchange, "ignored", bindings.get("all"));
    channel.basicPublish(exchange, "k", headers("a", 1, "b", "two"), Interop.bytes("unbound"));
    Interop.equal(drain(channel, queue), List.of());
  }

  private static String publicQueue(Channel channel) throws IOException {
    return channel.queueDeclare("", false, true, false, null).getQueue();
  }

  static void topics(Channel channel) throws Exception {
    String[] patterns = {"", "a.b.c", "a.*.c", "a.#.b", "a.b.b.c", "#", "#.#", "*", "#.b", "*.#", "#.a.#", "a.*.#", "*.#.*", "b.#"};
    String[] keys = {"", "a", "b", "a.b", "b.a", "a.b.c", "a.c.b", "a.b.b.c", "a..b", ".", "a.x.y.b", "b.b"};
    // The matching patterns by the documented rules: `*` is one word, `#` any number of them.
    String exchange = Interop.unique("topic");
    channel.exchangeDeclare(exchange, BuiltinExchangeType.TOPIC, false, true, null);
    List<String> queues = new ArrayList<>();
    for (String pattern : patterns) {
      String queue = Interop.exclusive(channel, null);
      queues.add(queue);
      channel.queueBind(queue, exchange, pattern);
    }
    for (String key : keys) channel.basicPublish(exchange, key, null, Interop.bytes(key));
    for (int n = 0; n < patterns.length; n++) {
      List<String> expected = new ArrayList<>();
      for (String key : keys) if (matches(words(patterns[n]), words(key))) expected.add(key);
      List<String> got = drain(channel, queues.get(n));
      if (!got.equals(expected)) throw new AssertionError("'" + patterns[n] + "' got " + got + ", wanted " + expected);
    }
  }

  private static List<String> words(String text) {
    return text.isEmpty() ? List.of() : Arrays.asList(text.split("\\.", -1));
  }

  private static boolean matches(List<String> pattern, List<String> key) {
    if (pattern.isEmpty()) return key.isEmpty();
    List<String> rest = pattern.subList(1, pattern.size());
    if (pattern.get(0).equals("#")) {
      for (int n = 0; n <= key.size(); n++) if (matches(rest, key.subList(n, key.size()))) return true;
      return false;
    }
    return !key.isEmpty() && (pattern.get(0).equals("*") || pattern.get(0).equals(key.get(0)))
        && matches(rest, key.subList(1, key.size()));
  }

  static void senderSelectedDistribution(Channel channel) throws Exception {
    String[] queues = {Interop.exclusive(channel, null), Interop.exclusive(channel, null), Interop.exclusive(channel, null)};
    channel.basicPublish("", queues[0], headers("CC", List.of(queues[1], queues[0]), "BCC", List.of(queues[2])), Interop.bytes("x"));
    for (String queue : queues) {
      Map<String, Object> got = Interop.take(channel, queue, true).getProps().getHeaders();
      Interop.equal(((List<?>) got.get("CC")).size(), 2);
      Interop.equal(got.containsKey("BCC"), false);
      Interop.equal(drain(channel, queue), List.of());
    }
    refused(406, other -> {
      other.basicPublish("", "q", headers("CC", 0), Interop.bytes("x"));
      return null;
    });
    refused(406, other -> {
      other.basicPublish("", "q", headers("BCC", "text"), Interop.bytes("x"));
      return null;
    });
  }

  static void exchangeBindings(Channel channel) throws Exception {
    String[] names = new String[4];
    String queue = Interop.exclusive(channel, null);
    for (int n = 0; n < 4; n++) {
      names[n] = Interop.unique("e2e");
      channel.exchangeDeclare(names[n], BuiltinExchangeType.FANOUT);
    }
    // A diamond: the message reaches the queue once; and a cycle, which it passes once.
    channel.exchangeBind(names[1], names[0], "");
    channel.exchangeBind(names[2], names[0], "");
    channel.exchangeBind(names[3], names[1], "");
    channel.exchangeBind(names[3], names[2], "");
    channel.exchangeBind(names[0], names[3], "");
    channel.exchangeBind(names[0], names[3], "");
    channel.queueBind(queue, names[3], "");
    channel.basicPublish(names[0], "", null, Interop.bytes("once"));
    Interop.equal(drain(channel, queue), List.of("once"));
    channel.exchangeUnbind(names[1], names[0], "");
    channel.exchangeDelete(names[2]);
    channel.basicPublish(names[0], "", null, Interop.bytes("no way"));
    Interop.equal(drain(channel, queue), List.of());
    channel.exchangeUnbind(names[1], names[0], "never bound");
    refused(404, other -> other.exchangeBind(Interop.unique("missing"), names[0], ""));
    refused(404, other -> other.exchangeBind(names[0], Interop.unique("missing"), ""));
    refused(403, other -> other.exchangeBind("", names[0], ""));
    refused(406, other -> {
      other.exchangeBind(names[1], names[0], "");
      return other.exchangeDelete(names[0], true);
    });
    for (String name : names) channel.exchangeDelete(name);
  }

  static void autoDeleteExchanges(Channel channel) throws Exception {
    String exchange = Interop.unique("auto-delete");
    String target = Interop.unique("auto-delete");
    String queue = Interop.exclusive(channel, null);
    channel.exchangeDeclare(exchange, "direct", false, true, null);
    channel.exchangeDeclare(target, "direct", false, true, null);
    channel.exchangeBind(target, exchange, "a");
    channel.queueBind(queue, target, "a");
    channel.exchangeDeclarePassive(exchange);
    channel.queueUnbind(queue, target, "a");
    // Its deletion removes the last binding of the other one.
    refused(404, other -> other.exchangeDeclarePassive(target));
    refused(404, other -> other.exchangeDeclarePassive(exchange));
  }

  // Dead letters and times to live

  private static Map<?, ?> death(GetResponse got, int number) {
    return (Map<?, ?>) ((List<?>) got.getProps().getHeaders().get("x-death")).get(number);
  }

  static void deadLetterReasons(Channel channel) throws Exception {
    String dead = Interop.exclusive(channel, null);
    Map<String, Object> arguments = map("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead, "x-max-length", 1);
    String queue = Interop.exclusive(channel, arguments);
    publish(channel, queue, "surplus");
    channel.basicPublish("", queue, expiring("30"), Interop.bytes("expired"));
    for (String reason : Arrays.asList("maxlen", "expired")) {
      GetResponse got = Interop.take(channel, dead, true);
      Interop.equal(Interop.text(got.getBody()), reason.equals("maxlen") ? "surplus" : reason);
      Interop.equal(death(got, 0).get("reason").toString(), reason);
      Interop.equal(death(got, 0).get("queue").toString(), queue);
      Interop.equal(death(got, 0).get("exchange").toString(), "");
      Interop.equal(got.getProps().getHeaders().get("x-first-death-reason").toString(), reason);
      Interop.equal(got.getProps().getHeaders().get("x-first-death-queue").toString(), queue);
      Interop.equal(got.getProps().getExpiration(), null);
      if (reason.equals("expired")) Interop.equal(death(got, 0).get("original-expiration").toString(), "30");
    }
    publish(channel, queue, "rejected");
    channel.basicReject(Interop.take(channel, queue, false).getEnvelope().getDeliveryTag(), false);
    Interop.equal(death(Interop.take(channel, dead, true), 0).get("reason").toString(), "rejected");
    publish(channel, queue, "nacked");
    channel.basicNack(Interop.take(channel, queue, false).getEnvelope().getDeliveryTag(), true, false);
    Interop.equal(next(channel, dead, 1), List.of("nacked"));
    // Purged and acknowledged messages are not dead-lettered.
    publish(channel, queue, "purged");
    channel.queuePurge(queue);
    publish(channel, queue, "acknowledged");
    drain(channel, queue);
    Interop.equal(drain(channel, dead), List.of());
  }

  static void deadLetterKeys(Channel channel) throws Exception {
    String exchange = Interop.unique("dlx");
    channel.exchangeDeclare(exchange, BuiltinExchangeType.DIRECT, false, true, null);
    String dead = Interop.exclusive(channel, null);
    String copies = Interop.exclusive(channel, null);
    String queue = Interop.exclusive(channel, map("x-dead-letter-exchange", exchange));
    channel.queueBind(dead, exchange, queue);
    channel.queueBind(copies, exchange, "copy");
    channel.basicPublish("", queue, headers("CC", List.of("copy")), Interop.bytes("x"));
    channel.basicReject(Interop.take(channel, queue, false).getEnvelope().getDeliveryTag(), false);
    GetResponse got = Interop.take(channel, dead, true);
    Interop.equal(got.getEnvelope().getRoutingKey(), queue);
    Interop.equal(got.getEnvelope().getExchange(), exchange);
    Interop.equal(death(got, 0).get("routing-keys").toString(), List.of(queue, "copy").toString());
    Interop.equal(next(channel, copies, 1), List.of("x"));
    // With a routing key of the queue, CC is removed.
    Map<String, Object> arguments = map("x-dead-letter-exchange", exchange, "x-dead-letter-routing-key", queue);
    String other = Interop.exclusive(channel, arguments);
    channel.basicPublish("", other, headers("CC", List.of("copy")), Interop.bytes("y"));
    channel.basicReject(Interop.take(channel, other, false).getEnvelope().getDeliveryTag(), false);
    Interop.equal(next(channel, dead, 1), List.of("y"));
    Interop.equal(drain(channel, copies), List.of());
    refused(406, one -> one.queueDeclare("", false, true, false, map("x-dead-letter-routing-key", "key without exchange")));
  }

  static void deadLetterCounts(Channel channel) throws Exception {
    String back = Interop.unique("dlx");
    String queue = Interop.exclusive(channel, map("x-dead-letter-exchange", "", "x-dead-letter-routing-key", back));
    channel.queueDeclare(back, false, true, false,
        map("x-message-ttl", 0, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", queue));
    publish(channel, queue, "x");
    for (int n = 0; n < 3; n++) channel.basicReject(Interop.take(channel, queue, false).getEnvelope().getDeliveryTag(), false);
    GetResponse got = Interop.take(channel, queue, true);
    Interop.equal(((List<?>) got.getProps().getHeaders().get("x-death")).size(), 2);
    Interop.equal(death(got, 0).get("queue").toString(), back);
    Interop.equal(death(got, 0).get("count"), 3L);
    Interop.equal(death(got, 1).get("queue").toString(), queue);
    Interop.equal(death(got, 1).get("count"), 3L);
    Interop.equal(got.getProps().getHeaders().get("x-first-death-queue").toString(), queue);
  }

  static void missingDeadLetterExchange(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, map("x-dead-letter-exchange", Interop.unique("missing")));
    publish(channel, queue, "1", "2");
    channel.basicReject(Interop.take(channel, queue, false).getEnvelope().getDeliveryTag(), false);
    Interop.equal(drain(channel, queue), List.of("2"));
  }

  static void deadLetterCycle(Channel channel) throws Exception {
    String queue = Interop.unique("cycle");
    channel.queueDeclare(queue, false, true, false,
        map("x-message-ttl", 20, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", queue));
    publish(channel, queue, "x");
    awaitCount(channel, queue, 0);
  }

  static void timeToLive(Channel channel) throws Exception {
    String dead = Interop.exclusive(channel, null);
    String brief = Interop.exclusive(channel, map("x-message-ttl", 60, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    String plain = Interop.exclusive(channel, map("x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
    channel.basicPublish("", brief, expiring("600000"), Interop.bytes("the queue's"));
    Interop.equal(next(channel, dead, 1), List.of("the queue's"));
    channel.basicPublish("", plain, expiring("60"), Interop.bytes("its own"));
    publish(channel, plain, "stays");
    Interop.equal(next(channel, dead, 1), List.of("its own"));
    Interop.equal(drain(channel, plain), List.of("stays"));
    // A message with a TTL of 0 expires unless a consumer takes it at once.
    channel.basicPublish("", plain, expiring("0"), Interop.bytes("no consumer"));
    Interop.equal(next(channel, dead, 1), List.of("no consumer"));
    Inbox inbox = new Inbox(channel, plain, true);
    channel.basicPublish("", plain, expiring("0"), Interop.bytes("a consumer"));
    Interop.equal(inbox.next(1), List.of("a consumer"));
  }

  static void invalidTimesToLive(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    for (String expiration : Arrays.asList("soon", "-1", "1.5", "10s", "")) {
      refused(406, other -> {
        other.basicPublish("", queue, expiring(expiration), Interop.bytes("x"));
        return null;
      });
    }
    for (Object value : Arrays.asList(-1, "soon", 1.5)) {
      refused(406, other -> other.queueDeclare("", false, true, false, map("x-message-ttl", value)));
    }
    Interop.equal(drain(channel, queue), List.of());
  }

  // Settlement

  static void requeueOrder(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    publish(channel, queue, "1", "2", "3", "4", "5");
    long[] tags = new long[4];
    for (int n = 0; n < 4; n++) tags[n] = channel.basicGet(queue, false).getEnvelope().getDeliveryTag();
    channel.basicReject(tags[2], true);
    channel.basicNack(tags[0], false, true);
    Interop.equal(Interop.text(channel.basicGet(queue, false).getBody()), "1");
    channel.basicNack(0, true, true);
    Interop.equal(drain(channel, queue), List.of("1", "2", "3", "4", "5"));
    publish(channel, queue, "a", "b", "c");
    for (int n = 0; n < 3; n++) channel.basicGet(queue, false);
    channel.basicRecover(true);
    GetResponse got = channel.basicGet(queue, true);
    Interop.equal(Interop.text(got.getBody()), "a");
    Interop.equal(got.getEnvelope().isRedeliver(), true);
    Interop.equal(drain(channel, queue), List.of("b", "c"));
  }

  static void settledTwice(Channel channel) throws Exception {
    String queue = channel.queueDeclare(Interop.unique("twice"), false, false, true, null).getQueue();
    for (int kind = 0; kind < 4; kind++) {
      publish(channel, queue, "x");
      int how = kind;
      refused(406, other -> {
        long tag = Interop.take(other, queue, false).getEnvelope().getDeliveryTag();
        other.basicAck(tag, false);
        if (how == 0) other.basicAck(tag, false);
        if (how == 1) other.basicReject(tag, true);
        if (how == 2) other.basicNack(tag, false, true);
        if (how == 3) other.basicAck(tag + 1, true);
        return null;
      });
    }
    channel.queueDelete(queue);
  }

  static void redelivery(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    publish(channel, queue, "1", "2", "3");
    Channel other = channel.getConnection().createChannel();
    Interop.equal(other.basicGet(queue, false).getEnvelope().isRedeliver(), false);
    other.basicGet(queue, false);
    other.close();
    for (boolean again : new boolean[] {true, true, false}) {
      GetResponse got = Interop.take(channel, queue, true);
      Interop.equal(got.getEnvelope().isRedeliver(), again);
    }
  }

  static void confirmsAndReturns(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    BlockingQueue<String> events = new LinkedBlockingQueue<>();
    channel.addReturnListener((code, text, exchange, key, properties, body) -> events.add("return " + Interop.text(body)));
    channel.addConfirmListener((tag, multiple) -> events.add("ack"), (tag, multiple) -> events.add("nack"));
    channel.confirmSelect();
    channel.confirmSelect();
    Interop.equal(channel.getNextPublishSeqNo(), 1L);
    // An unroutable message is confirmed after its return.
    channel.basicPublish("", Interop.unique("nowhere"), true, MessageProperties.PERSISTENT_BASIC, Interop.bytes("1"));
    Interop.equal(Interop.await(events), "return 1");
    Interop.equal(Interop.await(events), "ack");
    channel.basicPublish("", Interop.unique("nowhere"), false, null, Interop.bytes("2"));
    Interop.equal(Interop.await(events), "ack");
    publish(channel, queue, "3");
    channel.waitForConfirmsOrDie(Interop.WITHIN);
    Interop.equal(channel.getNextPublishSeqNo(), 4L);
    Interop.equal(drain(channel, queue), List.of("3"));
  }

  static void modes(Channel channel) throws Exception {
    refused(406, other -> {
      other.confirmSelect();
      return other.txSelect();
    });
    refused(406, other -> {
      other.txSelect();
      return other.confirmSelect();
    });
    refused(406, Channel::txCommit);
    refused(406, Channel::txRollback);
  }

  static void transactionalAcknowledgements(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    publish(channel, queue, "1", "2", "3");
    Connection connection = channel.getConnection();
    Channel other = connection.createChannel();
    other.txSelect();
    long first = other.basicGet(queue, false).getEnvelope().getDeliveryTag();
    other.basicAck(first, false);
    other.txRollback();
    // The acknowledgement is undone, and can be repeated.
    other.basicAck(first, false);
    publish(other, queue, "4");
    other.txCommit();
    other.basicNack(other.basicGet(queue, false).getEnvelope().getDeliveryTag(), false, true);
    Interop.equal(drain(channel, queue), List.of("3", "4"));
    other.txCommit();
    Interop.equal(drain(channel, queue), List.of("2"));
    publish(other, queue, "lost");
    other.close();
    Interop.equal(drain(channel, queue), List.of());
  }

  // Consumers

  static void directReplies(Channel channel) throws Exception {
    String requests = Interop.exclusive(channel, null);
    Inbox replies = new Inbox(channel, "amq.rabbitmq.reply-to", true);
    AMQP.BasicProperties asking = new AMQP.BasicProperties.Builder().replyTo("amq.rabbitmq.reply-to").correlationId("1").build();
    channel.basicPublish("", requests, asking, Interop.bytes("question"));
    String address = Interop.take(channel, requests, true).getProps().getReplyTo();
    Interop.equal(address.startsWith("amq.rabbitmq.reply-to."), true);
    try (Connection server = Interop.factory().newConnection()) {
      Channel answering = server.createChannel();
      answering.queueDeclarePassive(address);
      BlockingQueue<String> returned = new LinkedBlockingQueue<>();
      answering.addReturnListener((code, text, exchange, key, properties, body) -> returned.add(Interop.text(body)));
      answering.basicPublish("", address, null, Interop.bytes("answer"));
      Interop.equal(replies.next(1), List.of("answer"));
      channel.basicCancel(replies.tag);
      answering.basicPublish("", address, true, null, Interop.bytes("too late"));
      Interop.equal(Interop.await(returned), "too late");
    }
    refused(404, other -> other.queueDeclarePassive(address));
  }

  static void refusedDirectReplies(Channel channel) throws Exception {
    String to = "amq.rabbitmq.reply-to";
    refused(406, other -> new Inbox(other, to, false));
    refused(406, other -> {
      new Inbox(other, to, true);
      return new Inbox(other, to, true);
    });
    refused(406, other -> {
      other.basicPublish("", "q", new AMQP.BasicProperties.Builder().replyTo(to).build(), Interop.bytes("no consumer"));
      return null;
    });
  }

  static void cancelNotifications(Channel channel) throws Exception {
    String queue = channel.queueDeclare(Interop.unique("cancel"), false, false, false, null).getQueue();
    Inbox one = new Inbox(channel, queue, true);
    Inbox two = new Inbox(channel.getConnection().createChannel(), queue, true);
    try (Connection other = Interop.factory().newConnection()) {
      other.createChannel().queueDelete(queue);
    }
    Interop.equal(Interop.await(one.cancelled), one.tag);
    Interop.equal(Interop.await(two.cancelled), two.tag);
    // A consumer that cancels itself is not notified.
    String again = Interop.exclusive(channel, null);
    Inbox three = new Inbox(channel, again, true);
    channel.basicCancel(three.tag);
    three.nothing(channel);
    Interop.equal(three.cancelled.size(), 0);
  }

  static void consumerPriorities(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    Connection connection = channel.getConnection();
    Channel high = connection.createChannel();
    high.basicQos(2);
    Inbox low = new Inbox(channel, queue, true, "x-priority", -1);
    Inbox usual = new Inbox(channel, queue, true);
    Inbox first = new Inbox(high, queue, false, "x-priority", 10);
    publish(channel, queue, "1", "2", "3", "4");
    Interop.equal(first.next(2), List.of("1", "2"));
    Interop.equal(usual.next(2), List.of("3", "4"));
    high.basicAck(2, true);
    publish(high, queue, "5");
    Interop.equal(first.next(1), List.of("5"));
    low.nothing(channel);
    for (Object value : Arrays.asList("high", 1.5, true)) {
      refused(406, other -> new Inbox(other, Interop.exclusive(other, null), true, "x-priority", value));
    }
  }

  static void singleActiveConsumer(Channel channel) throws Exception {
    Connection connection = channel.getConnection();
    String queue = Interop.exclusive(channel, map("x-single-active-consumer", true));
    Inbox active = new Inbox(channel, queue, true);
    Channel other = connection.createChannel();
    Inbox waiting = new Inbox(other, queue, true);
    publish(channel, queue, "1", "2");
    Interop.equal(active.next(2), List.of("1", "2"));
    waiting.nothing(channel);
    channel.basicCancel(active.tag);
    publish(channel, queue, "3");
    Interop.equal(waiting.next(1), List.of("3"));
    Channel third = connection.createChannel();
    Interop.refused(403, () -> Inbox.exclusive(third, queue));
  }

  static void exclusiveConsumers(Channel channel) throws Exception {
    Connection connection = channel.getConnection();
    String queue = Interop.exclusive(channel, null);
    Inbox only = Inbox.exclusive(channel, queue);
    Channel other = connection.createChannel();
    Interop.refused(403, () -> new Inbox(other, queue, true));
    Channel third = connection.createChannel();
    Interop.refused(403, () -> Inbox.exclusive(third, queue));
    channel.basicCancel(only.tag);
    new Inbox(channel, queue, true);
    Channel fourth = connection.createChannel();
    Interop.refused(403, () -> Inbox.exclusive(fourth, queue));
  }

  static void prefetch(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    channel.basicQos(2);
    Inbox one = new Inbox(channel, queue, false);
    channel.basicQos(1);
    Inbox two = new Inbox(channel, queue, false);
    for (int n = 0; n < 6; n++) publish(channel, queue, "" + n);
    one.next(2);
    two.next(1);
    one.nothing(channel);
    two.nothing(channel);
    channel.basicAck(0, true);
    one.next(2);
    two.next(1);
    // For the whole channel, regardless of its consumers.
    Channel shared = channel.getConnection().createChannel();
    String other = Interop.exclusive(shared, null);
    shared.basicQos(3, true);
    BlockingQueue<Delivery> shareds = new LinkedBlockingQueue<>();
    for (int n = 0; n < 2; n++) shared.basicConsume(other, false, (tag, delivery) -> shareds.add(delivery), tag -> {});
    for (int n = 0; n < 6; n++) publish(shared, other, "" + n);
    Channel probe = channel.getConnection().createChannel();
    for (int n = 0; n < 3; n++) Interop.await(shareds);
    awaitCount(probe, other, 3);
    Interop.equal(shareds.size(), 0);
  }

  // Limits

  static void maxLength(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, map("x-max-length", 2));
    publish(channel, queue, "1", "2", "3", "4");
    Interop.equal(drain(channel, queue), List.of("3", "4"));
    // Unacked messages do not count.
    publish(channel, queue, "5", "6");
    long tag = channel.basicGet(queue, false).getEnvelope().getDeliveryTag();
    publish(channel, queue, "7");
    awaitCount(channel, queue, 2);
    channel.basicAck(tag, false);
    Interop.equal(drain(channel, queue), List.of("6", "7"));
    String narrow = Interop.exclusive(channel, map("x-max-length-bytes", 10));
    publish(channel, narrow, "12345", "67890", "abcde");
    Interop.equal(drain(channel, narrow), List.of("67890", "abcde"));
    String nothing = Interop.exclusive(channel, map("x-max-length", 0));
    publish(channel, nothing, "x");
    Interop.equal(drain(channel, nothing), List.of());
    refused(406, other -> other.queueDeclare("", false, true, false, map("x-max-length", -1)));
    refused(406, other -> other.queueDeclare("", false, true, false, map("x-max-length", "many")));
    refused(406, other -> other.queueDeclare("", false, true, false, map("x-overflow", "spill")));
  }

  static void rejectPublish(Channel channel) throws Exception {
    String dead = Interop.exclusive(channel, null);
    for (String overflow : Arrays.asList("reject-publish", "reject-publish-dlx")) {
      String queue = Interop.exclusive(channel, map("x-max-length", 1, "x-overflow", overflow,
          "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead));
      Channel confirming = channel.getConnection().createChannel();
      confirming.confirmSelect();
      publish(confirming, queue, "1");
      Interop.equal(confirming.waitForConfirms(Interop.WITHIN), true);
      publish(confirming, queue, "2");
      Interop.equal(confirming.waitForConfirms(Interop.WITHIN), false);
      Interop.equal(drain(channel, queue), List.of("1"));
      Interop.equal(drain(channel, dead), overflow.endsWith("dlx") ? List.of("2") : List.of());
    }
  }

  static void priorities(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, map("x-max-priority", 5));
    for (Integer priority : Arrays.asList(null, 0, 3, 5, 9, 1)) {
      channel.basicPublish("", queue, new AMQP.BasicProperties.Builder().priority(priority).build(), Interop.bytes("" + priority));
    }
    Interop.equal(drain(channel, queue), List.of("5", "9", "3", "1", "null", "0"));
    for (Object value : Arrays.asList(-1, 256, "high")) {
      refused(406, other -> other.queueDeclare("", false, true, false, map("x-max-priority", value)));
    }
  }

  static void smallFrames(Channel ignored) throws Exception {
    ConnectionFactory factory = Interop.factory();
    factory.setRequestedFrameMax(4096);
    try (Connection connection = factory.newConnection()) {
      Interop.equal(connection.getFrameMax(), 4096);
      Channel channel = connection.createChannel();
      String queue = Interop.exclusive(channel, null);
      int payload = 4096 - 8;
      for (int size : new int[] {0, 1, payload - 1, payload, payload + 1, 2 * payload, 2 * payload + 1}) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) size);
        channel.basicPublish("", queue, null, body);
        Interop.equal(Arrays.equals(Interop.take(channel, queue, true).getBody(), body), true);
      }
    }
  }

  static void channelMax(Channel ignored) throws Exception {
    ConnectionFactory factory = Interop.factory();
    factory.setRequestedChannelMax(0);
    try (Connection connection = factory.newConnection()) {
      // Without a limit of the client, the broker's applies.
      Interop.equal(connection.getChannelMax(), 2047);
      Interop.equal(connection.createChannel(2047).isOpen(), true);
      Interop.equal(connection.createChannel().queueDeclare() != null, true);
    }
  }

  // Errors

  static void notFound(Channel channel) throws Exception {
    String missing = Interop.unique("missing");
    refused(404, other -> other.queueDeclarePassive(missing));
    refused(404, other -> other.exchangeDeclarePassive(missing));
    refused(404, other -> other.basicGet(missing, true));
    refused(404, other -> new Inbox(other, missing, true));
    refused(404, other -> other.queuePurge(missing));
    refused(404, other -> other.queueBind(missing, "amq.direct", ""));
    refused(404, other -> other.queueBind(other.queueDeclare().getQueue(), missing, ""));
    refused(404, other -> {
      other.basicPublish(missing, "", null, Interop.bytes("x"));
      return null;
    });
    // These succeed: the objects do not exist.
    channel.queueDelete(missing);
    channel.exchangeDelete(missing);
    channel.queueUnbind(missing, "amq.direct", "");
    channel.queueUnbind(Interop.exclusive(channel, null), missing, "");
  }

  static void accessRefused(Channel channel) throws Exception {
    String queue = Interop.exclusive(channel, null);
    refused(403, other -> other.queueDeclare("amq.mine", false, false, false, null));
    refused(403, other -> other.exchangeDeclare("amq.mine", "direct"));
    refused(403, other -> other.exchangeDeclare("", "direct"));
    refused(403, other -> other.exchangeDelete("amq.direct"));
    refused(403, other -> other.exchangeDelete(""));
    refused(403, other -> other.queueBind(other.queueDeclare().getQueue(), "", "key"));
    refused(403, other -> other.queueUnbind(other.queueDeclare().getQueue(), "", "key"));
    Interop.equal(exists(channel.getConnection(), queue), true);
  }

  static void preconditionFailed(Channel channel) throws Exception {
    String queue = channel.queueDeclare(Interop.unique("406"), false, false, true, map("x-max-length", 5)).getQueue();
    String exchange = Interop.unique("406");
    channel.exchangeDeclare(exchange, "direct", false, true, null);
    channel.queueBind(queue, exchange, "k");
    publish(channel, queue, "x");
    refused(406, other -> other.queueDeclare(queue, true, false, true, map("x-max-length", 5)));
    refused(406, other -> other.queueDeclare(queue, false, false, false, map("x-max-length", 5)));
    refused(406, other -> other.queueDeclare(queue, false, false, true, map("x-max-length", 6)));
    refused(406, other -> other.queueDeclare(queue, false, false, true, null));
    refused(406, other -> other.exchangeDeclare(exchange, "topic", false, true, null));
    refused(406, other -> other.exchangeDeclare(exchange, "direct", true, true, null));
    refused(406, other -> other.exchangeDelete(exchange, true));
    refused(406, other -> other.queueDelete(queue, false, true));
    new Inbox(channel, queue, false);
    refused(406, other -> other.queueDelete(queue, true, false));
    refused(406, other -> {
      AMQP.BasicProperties another = new AMQP.BasicProperties.Builder().userId("another").build();
      other.basicPublish("", queue, another, Interop.bytes("x"));
      return null;
    });
    channel.queueDeclare(queue, false, false, true, map("x-max-length", 5L));  // an integer is an integer
    channel.queueDelete(queue);
  }

  static void notAllowed(Channel channel) throws Exception {
    String queue = channel.queueDeclare(Interop.unique("530"), false, false, true, null).getQueue();
    refused(530, other -> {
      other.basicConsume(queue, true, "tag", (tag, delivery) -> {}, tag -> {});
      return other.basicConsume(queue, true, "tag", (tag, delivery) -> {}, tag -> {});
    });
    channel.queueDelete(queue);
  }

  static void reusedNumber(Channel ignored) throws Exception {
    try (Connection connection = Interop.factory().newConnection()) {
      for (int n = 0; n < 20; n++) {
        Channel channel = connection.createChannel(1);
        BlockingQueue<ShutdownSignalException> ended = new LinkedBlockingQueue<>();
        channel.addShutdownListener(ended::add);
        channel.basicPublish(Interop.unique("missing"), "", null, Interop.bytes("x"));
        Interop.equal(((AMQP.Channel.Close) Interop.await(ended).getReason()).getReplyCode(), 404);
      }
      connection.createChannel(1).queueDeclare();
    }
  }

  // Recovery

  /** A proxy to the broker that can be cut. */
  private static final class Way implements Closeable {
    private final ServerSocket listener = new ServerSocket(0, 50, InetAddress.getLoopbackAddress());
    private final List<Socket> sockets = Collections.synchronizedList(new ArrayList<>());
    private final URI broker = URI.create(Interop.URL);

    Way() throws IOException {
      spawn(() -> {
        while (true) {
          Socket client = listener.accept();
          Socket server = new Socket(broker.getHost(), broker.getPort());
          sockets.addAll(List.of(client, server));
          spawn(() -> client.getInputStream().transferTo(server.getOutputStream()));
          spawn(() -> server.getInputStream().transferTo(client.getOutputStream()));
        }
      });
    }

    private interface Task {
      void run() throws IOException;
    }

    private static void spawn(Task task) {
      Thread thread = new Thread(() -> {
        try {
          task.run();
        } catch (IOException ignored) {
          // It was cut.
        }
      });
      thread.setDaemon(true);
      thread.start();
    }

    void cut() throws IOException {
      synchronized (sockets) {
        for (Socket socket : sockets) socket.close();
        sockets.clear();
      }
    }

    @Override
    public void close() throws IOException {
      listener.close();
      cut();
    }
  }

  static void recovery(Channel witness) throws Exception {
    try (Way way = new Way()) {
      ConnectionFactory factory = Interop.factory();
      factory.setHost("127.0.0.1");
      factory.setPort(way.listener.getLocalPort());
      factory.setAutomaticRecoveryEnabled(true);
      factory.setTopologyRecoveryEnabled(true);
      factory.setNetworkRecoveryInterval(50);
      try (Connection connection = factory.newConnection()) {
        BlockingQueue<String> recovered = new LinkedBlockingQueue<>();
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
          @Override
          public void handleRecovery(Recoverable recoverable) {
            recovered.add("connection");
          }

          @Override
          public void handleRecoveryStarted(Recoverable recoverable) {}
        });
        Channel channel = connection.createChannel();
        String exchange = Interop.unique("recovery");
        String downstream = Interop.unique("recovery");
        channel.exchangeDeclare(exchange, "topic", false, true, null);
        channel.exchangeDeclare(downstream, "fanout", false, true, null);
        channel.exchangeBind(downstream, exchange, "down.#");
        String unnamed = channel.queueDeclare().getQueue();
        String named = Interop.unique("recovery");
        channel.queueDeclare(named, false, true, false, map("x-max-length", 100));
        channel.queueBind(unnamed, exchange, "unnamed.*");
        channel.queueBind(named, downstream, "");
        channel.confirmSelect();
        channel.basicQos(1);
        Inbox one = new Inbox(channel, unnamed, false);
        Inbox two = new Inbox(channel, named, true);
        for (int round = 0; round < 3; round++) {
          channel.basicPublish(exchange, "unnamed.a", null, Interop.bytes("a" + round));
          channel.basicPublish(exchange, "unnamed.b", null, Interop.bytes("b" + round));
          channel.basicPublish(exchange, "down.a", null, Interop.bytes("c" + round));
          channel.waitForConfirmsOrDie(Interop.WITHIN);
          Delivery delivery = Interop.await(one.deliveries);
          Interop.equal(Interop.text(delivery.getBody()), "a" + round);
          one.nothing(witness);
          channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
          delivery = Interop.await(one.deliveries);
          Interop.equal(Interop.text(delivery.getBody()), "b" + round);
          channel.basicAck(delivery.getEnvelope().getDeliveryTag(), false);
          Interop.equal(two.next(1), List.of("c" + round));
          if (round < 2) {
            way.cut();
            Interop.await(recovered);
          }
        }
      }
    }
  }
}
