import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.math.BigDecimal;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Date;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/** RabbitMQ's Java client against a broker: one method per subject; prints passed and failed methods. */
public class Interop {
  interface Test {
    void run(Channel channel) throws Exception;
  }

  static final String URL = System.getenv("LEVERET_URL");
  static final long WITHIN = 60_000;
  static int numbers = 0;

  static String unique(String what) {
    return "java." + ProcessHandle.current().pid() + "." + what + "." + (++numbers);
  }

  static ConnectionFactory factory() throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(URL);
    factory.setAutomaticRecoveryEnabled(false);
    return factory;
  }

  static void equal(Object got, Object wanted) {
    if (!java.util.Objects.equals(got, wanted)) throw new AssertionError("got " + got + ", wanted " + wanted);
  }

  static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  static String text(byte[] body) {
    return new String(body, StandardCharsets.UTF_8);
  }

  static GetResponse take(Channel channel, String queue, boolean autoAck) throws Exception {
    for (long deadline = System.currentTimeMillis() + WITHIN; System.currentTimeMillis() < deadline; Thread.sleep(20)) {
      GetResponse response = channel.basicGet(queue, autoAck);
      if (response != null) return response;
    }
    throw new AssertionError("no message in " + queue);
  }

  static <T> T await(BlockingQueue<T> queue) throws Exception {
    T value = queue.poll(WITHIN, TimeUnit.MILLISECONDS);
    if (value == null) throw new AssertionError("nothing came");
    return value;
  }

  static String exclusive(Channel channel, Map<String, Object> arguments) throws IOException {
    return channel.queueDeclare("", false, true, false, arguments).getQueue();
  }

  /** The action closes the channel (or the connection) with the code. */
  static void refused(int code, Callable<?> action) throws Exception {
    try {
      action.call();
    } catch (IOException | AlreadyClosedException error) {
      Throwable cause = error instanceof AlreadyClosedException ? error : error.getCause();
      Object reason = ((ShutdownSignalException) cause).getReason();
      int got = reason instanceof AMQP.Channel.Close
          ? ((AMQP.Channel.Close) reason).getReplyCode()
          : ((AMQP.Connection.Close) reason).getReplyCode();
      equal(got, code);
      return;
    }
    throw new AssertionError("not refused with " + code);
  }

  static void properties(Channel channel) throws Exception {
    String queue = exclusive(channel, null);
    Map<String, Object> headers = new HashMap<>();
    headers.put("int", 5);
    headers.put("long", 1L << 40);
    headers.put("bool", true);
    headers.put("double", 1.5);
    headers.put("float", 0.5f);
    headers.put("short", (short) -300);
    headers.put("byte", (byte) -3);
    headers.put("decimal", new BigDecimal("3.14"));
    headers.put("date", new Date(1_700_000_000_000L));
    headers.put("bytes", new byte[] {0, -1});
    headers.put("nothing", null);
    headers.put("text", "grüße");
    headers.put("list", Arrays.asList(1, 2L, Collections.singletonMap("three", 3)));
    AMQP.BasicProperties sent = new AMQP.BasicProperties("text/plain", "utf-8", headers, 2, 5, "c", "r", "60000", "m",
        new Date(1_700_000_000_000L), "t", "guest", "a", "cl");
    channel.basicPublish("", queue, sent, bytes("body"));
    GetResponse response = take(channel, queue, true);
    AMQP.BasicProperties got = response.getProps();
    for (String key : Arrays.asList("int", "long", "bool", "double", "float", "short", "byte", "decimal", "date", "nothing", "list")) {
      equal(got.getHeaders().get(key), headers.get(key));
    }
    equal(got.getHeaders().get("text").toString(), "grüße");
    equal(Arrays.equals((byte[]) got.getHeaders().get("bytes"), new byte[] {0, -1}), true);
    equal(got.builder().headers(null).build().toString(), sent.builder().headers(null).build().toString());
    equal(text(response.getBody()), "body");
  }

  static void confirms(Channel channel) throws Exception {
    String queue = unique("confirms");
    channel.queueDeclare(queue, true, false, false, null);
    channel.confirmSelect();
    for (int n = 0; n < 500; n++) channel.basicPublish("", queue, MessageProperties.PERSISTENT_BASIC, bytes("" + n));
    channel.waitForConfirmsOrDie(WITHIN);
    equal(channel.messageCount(queue), 500L);
    equal(channel.queuePurge(queue).getMessageCount(), 500);
    equal(channel.queueDelete(queue, true, true).getMessageCount(), 0);
  }

  static void nacked(Channel channel) throws Exception {
    Map<String, Object> arguments = new HashMap<>();
    arguments.put("x-max-length", 1);
    arguments.put("x-overflow", "reject-publish");
    String queue = exclusive(channel, arguments);
    channel.confirmSelect();
    channel.basicPublish("", queue, null, bytes("1"));
    equal(channel.waitForConfirms(WITHIN), true);
    channel.basicPublish("", queue, null, bytes("2"));
    equal(channel.waitForConfirms(WITHIN), false);
  }

  static void returned(Channel channel) throws Exception {
    BlockingQueue<String> returns = new LinkedBlockingQueue<>();
    channel.addReturnListener((code, text, exchange, key, properties, body) -> returns.add(code + text + text(body)));
    channel.basicPublish("", unique("nowhere"), true, null, bytes("back"));
    equal(await(returns), "312NO_ROUTEback");
  }

  static void consuming(Channel channel) throws Exception {
    String queue = exclusive(channel, null);
    channel.basicQos(3);
    BlockingQueue<com.rabbitmq.client.Delivery> deliveries = new LinkedBlockingQueue<>();
    BlockingQueue<String> cancelled = new LinkedBlockingQueue<>();
    String tag = channel.basicConsume(queue, false, (consumer, delivery) -> deliveries.add(delivery), cancelled::add);
    for (int n = 0; n < 6; n++) channel.basicPublish("", queue, null, bytes("" + n));
    channel.basicAck(await(deliveries).getEnvelope().getDeliveryTag(), false);
    channel.basicReject(await(deliveries).getEnvelope().getDeliveryTag(), false);
    channel.basicNack(await(deliveries).getEnvelope().getDeliveryTag(), false, true);
    int redelivered = 0;
    long last = 0;
    for (int n = 0; n < 3; n++) {
      com.rabbitmq.client.Delivery delivery = await(deliveries);
      if (delivery.getEnvelope().isRedeliver()) redelivered++;
      last = delivery.getEnvelope().getDeliveryTag();
    }
    channel.basicAck(last, true);
    com.rabbitmq.client.Delivery delivery = await(deliveries);
    if (delivery.getEnvelope().isRedeliver()) redelivered++;
    equal(redelivered, 1);
    channel.basicRecover(true);
    equal(await(deliveries).getEnvelope().isRedeliver(), true);
    channel.queueDelete(queue);
    equal(await(cancelled), tag);
  }

  static void transactions(Channel channel) throws Exception {
    String queue = exclusive(channel, null);
    channel.txSelect();
    channel.basicPublish("", queue, null, bytes("1"));
    channel.txRollback();
    channel.basicPublish("", queue, null, bytes("2"));
    equal(channel.basicGet(queue, true), null);
    channel.txCommit();
    equal(text(take(channel, queue, true).getBody()), "2");
  }

  static void routing(Channel channel) throws Exception {
    String topic = unique("topic");
    String headers = unique("headers");
    String lost = exclusive(channel, null);
    String queue = exclusive(channel, null);
    String alternate = unique("alternate");
    channel.exchangeDeclare(alternate, BuiltinExchangeType.FANOUT, false, true, null);
    channel.queueBind(lost, alternate, "");
    channel.exchangeDeclare(topic, BuiltinExchangeType.TOPIC, false, true, Collections.singletonMap("alternate-exchange", alternate));
    channel.exchangeDeclare(headers, "headers", false, true, true, null);
    channel.exchangeBind(headers, topic, "a.#");
    Map<String, Object> match = new HashMap<>();
    match.put("x-match", "any");
    match.put("n", 1);
    channel.queueBind(queue, headers, "", match);
    channel.basicPublish(topic, "a.b", new AMQP.BasicProperties.Builder().headers(Collections.singletonMap("n", 1)).build(), bytes("yes"));
    channel.basicPublish(topic, "z", null, bytes("lost"));
    equal(text(take(channel, queue, true).getBody()), "yes");
    equal(text(take(channel, lost, true).getBody()), "lost");
    channel.exchangeUnbind(headers, topic, "a.#");
    refused(403, () -> {
      channel.basicPublish(headers, "", null, bytes("internal"));
      return channel.queueDeclare();
    });
  }

  static void deadLetters(Channel channel) throws Exception {
    String dead = exclusive(channel, null);
    Map<String, Object> arguments = new HashMap<>();
    arguments.put("x-message-ttl", 30);
    arguments.put("x-dead-letter-exchange", "");
    arguments.put("x-dead-letter-routing-key", dead);
    String queue = exclusive(channel, arguments);
    channel.basicPublish("", queue, null, bytes("x"));
    List<?> deaths = (List<?>) take(channel, dead, true).getProps().getHeaders().get("x-death");
    Map<?, ?> death = (Map<?, ?>) deaths.get(0);
    equal(death.get("reason").toString(), "expired");
    equal(death.get("queue").toString(), queue);
    equal(death.get("count"), 1L);
    equal(death.get("time") instanceof Date, true);
    equal(((List<?>) death.get("routing-keys")).get(0).toString(), queue);
  }

  static void rpc(Channel channel) throws Exception {
    String queue = exclusive(channel, null);
    try (Connection connection = factory().newConnection(); Channel other = connection.createChannel()) {
      String name = unique("rpc");
      other.queueDeclare(name, false, true, false, null);
      RpcServer server = new RpcServer(other, name) {
        @Override
        public byte[] handleCall(com.rabbitmq.client.Delivery request, AMQP.BasicProperties reply) {
          return bytes("re: " + text(request.getBody()));
        }
      };
      Thread thread = new Thread(() -> {
        try {
          server.mainloop();
        } catch (IOException | ShutdownSignalException ignored) {
          // The channel ends with the test.
        }
      });
      thread.setDaemon(true);
      thread.start();
      // By default the client receives replies over amq.rabbitmq.reply-to.
      RpcClient client = new RpcClient(new RpcClientParams().channel(channel).exchange("").routingKey(name).timeout((int) WITHIN));
      for (int n = 0; n < 5; n++) equal(client.stringCall("call " + n), "re: call " + n);
      client.close();
      server.terminateMainloop();
    }
    equal(channel.messageCount(queue), 0L);
  }

  static void large(Channel channel) throws Exception {
    String queue = exclusive(channel, null);
    byte[] body = new byte[10 << 20];
    for (int n = 0; n < body.length; n++) body[n] = (byte) (n * 31);
    channel.basicPublish("", queue, null, body);
    channel.basicPublish("", queue, null, new byte[0]);
    equal(Arrays.equals(take(channel, queue, true).getBody(), body), true);
    equal(take(channel, queue, true).getBody().length, 0);
  }

  static void errors(Channel ignored) throws Exception {
    Connection connection = factory().newConnection();
    refused(404, () -> connection.createChannel().queueDeclarePassive(unique("missing")));
    refused(403, () -> connection.createChannel().queueDeclare("amq.mine", false, false, false, null));
    refused(406, () -> connection.createChannel().queueDeclare(unique("bad"), false, false, false, Collections.singletonMap("x-max-length", -1)));
    Channel channel = connection.createChannel();
    refused(406, () -> {
      channel.basicAck(99, false);
      return channel.queueDeclare();
    });
    equal(connection.isOpen(), true);
    Channel last = connection.createChannel();
    refused(503, () -> last.exchangeDeclare(unique("x"), "no-such-type"));
    equal(connection.isOpen(), false);
  }

  static void connections(Channel ignored) throws Exception {
    ConnectionFactory factory = factory();
    factory.setRequestedHeartbeat(1);
    factory.setRequestedFrameMax(8192);
    factory.setRequestedChannelMax(3);
    factory.setClientProperties(new LinkedHashMap<>(Collections.singletonMap("connection_name", "größe")));
    try (Connection connection = factory.newConnection()) {
      equal(connection.getFrameMax(), 8192);
      equal(connection.getChannelMax(), 3);
      equal(connection.getHeartbeat(), 1);
      equal(((Map<?, ?>) connection.getServerProperties().get("capabilities")).get("publisher_confirms"), true);
      Thread.sleep(3500);
      for (int n = 0; n < 3; n++) equal(connection.createChannel() != null, true);
      equal(connection.createChannel(), null);
    }
    ConnectionFactory wrong = factory();
    wrong.setPassword("wrong");
    try {
      wrong.newConnection();
      throw new AssertionError("a wrong password was taken");
    } catch (AuthenticationFailureException expected) {
      equal(expected.getMessage().contains("403") || expected.getMessage().contains("ACCESS"), true);
    }
    ConnectionFactory missing = factory();
    missing.setVirtualHost("missing");
    refused(530, missing::newConnection);
  }

  static void manyChannels(Channel ignored) throws Exception {
    try (Connection connection = factory().newConnection()) {
      List<Channel> channels = new ArrayList<>();
      List<String> queues = new ArrayList<>();
      for (int n = 0; n < 100; n++) {
        channels.add(connection.createChannel());
        queues.add(exclusive(channels.get(n), null));
      }
      for (int n = 0; n < 100; n++) channels.get(n).basicPublish("", queues.get(99 - n), null, bytes("" + (99 - n)));
      for (int n = 0; n < 100; n++) equal(text(take(channels.get(n), queues.get(n), true).getBody()), "" + n);
    }
  }

  public static void main(String[] arguments) throws Exception {
    Map<String, Test> tests = new LinkedHashMap<>();
    tests.put("properties", Interop::properties);
    tests.put("confirms", Interop::confirms);
    tests.put("nacked", Interop::nacked);
    tests.put("returned", Interop::returned);
    tests.put("consuming", Interop::consuming);
    tests.put("transactions", Interop::transactions);
    tests.put("routing", Interop::routing);
    tests.put("deadLetters", Interop::deadLetters);
    tests.put("rpc", Interop::rpc);
    tests.put("large", Interop::large);
    tests.put("errors", Interop::errors);
    tests.put("connections", Interop::connections);
    tests.put("manyChannels", Interop::manyChannels);
    Functional.add(tests);
    if (arguments.length > 0) tests.keySet().retainAll(Arrays.asList(arguments));
    int failed = 0;
    for (Map.Entry<String, Test> test : tests.entrySet()) {
      try (Connection connection = factory().newConnection()) {
        test.getValue().run(connection.createChannel());
        System.out.println("ok " + test.getKey());
      } catch (Throwable problem) {
        failed++;
        System.out.println("FAILED " + test.getKey());
        problem.printStackTrace(System.out);
      }
    }
    System.out.println((tests.size() - failed) + " passed, " + failed + " failed");
    System.exit(failed == 0 ? 0 : 1);
  }
}
