import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.http.client.Client;
import com.rabbitmq.http.client.ClientParameters;
import com.rabbitmq.http.client.GetAckMode;
import com.rabbitmq.http.client.GetEncoding;
import com.rabbitmq.http.client.HttpClientException;
import com.rabbitmq.http.client.domain.*;
import java.util.List;
import java.util.Map;

/** Calls of Hop, RabbitMQ's HTTP client for Java. Prints `ok ...` for each check and their number at the end. */
public class Hop {
  private static int passed;

  private static void check(String what, boolean holds) {
    if (!holds) {
      throw new AssertionError(what);
    }
    passed++;
    System.out.println("ok " + what);
  }

  public static void main(String[] arguments) throws Exception {
    Client client =
        new Client(new ClientParameters().url(System.getenv("LEVERET_HTTP_URL") + "api/").username("guest").password("guest"));
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(System.getenv("LEVERET_URL"));
    factory.setAutomaticRecoveryEnabled(false);
    Channel channel = factory.newConnection("hop").createChannel();
    channel.queueDeclare("hop.watched", true, false, false, null);
    channel.basicQos(7);
    channel.basicConsume("hop.watched", (tag, message) -> {}, tag -> {});
    observe(client); // and close the connection
    vhosts(client);
    users(client);
    objects(client);
    messages(client);
    policies(client);
    limits(client);
    definitions(client);
    System.out.println(passed + " passed");
  }

  private static void observe(Client client) throws InterruptedException {
    // Lists are at most a second old.
    while (client.getOverview().getObjectTotals().getConsumers() == 0) {
      Thread.sleep(20);
    }
    OverviewResponse overview = client.getOverview();
    check("overview", overview.getServerVersion().startsWith("4.") && overview.getObjectTotals().getConnections() >= 1);
    check("listeners", !overview.getListeners().isEmpty() && overview.getContexts() != null);
    check("whoami", client.whoAmI().getName().equals("guest") && client.whoAmI().getTags().contains("administrator"));
    NodeInfo node = client.getNodes().get(0);
    check("node", client.getNode(node.getName()).isRunning() && node.getMemoryUsed() > 0);
    check("aliveness", client.alivenessTest("/"));
    ConnectionInfo connection = client.getConnections().stream().filter(c -> c.getClientProperties().getConnectionName().equals("hop")).findFirst().get();
    check("connection", client.getConnection(connection.getName()).getVhost().equals("/"));
    check("connections of a user", client.getConnectionsOfUser("guest").size() >= 1);
    check("pages of connections", client.getConnections(new QueryParameters().pagination().pageSize(10).query()).getItemCount() >= 1);
    ChannelInfo channel = client.getChannels(connection.getName()).get(0);
    check("channel", client.getChannel(channel.getName()).getPrefetchCount() == 7 && channel.getConsumerCount() == 1);
    ConsumerDetails consumer = client.getConsumers("/").stream().filter(c -> c.getQueueDetails().getName().equals("hop.watched")).findFirst().get();
    check("consumer", consumer.getPrefetchCount() == 7 && consumer.isAckRequired() && consumer.isActive());
    check("extensions", client.getExtensions() != null);
    check("cluster name", client.getClusterName().getName().startsWith("rabbit@"));
    client.closeConnection(connection.getName(), "tested");
    check("missing connection", client.getConnection("missing") == null);
  }

  private static void vhosts(Client client) {
    client.createVhost("hop", "for tests", "a", "b");
    VhostInfo vhost = client.getVhost("hop");
    check("vhost", vhost.getDescription().equals("for tests") && vhost.getTags().equals(List.of("a", "b")));
    check("vhosts", client.getVhosts().size() >= 2);
    check("missing vhost", client.getVhost("missing") == null);
    client.updatePermissions("hop", "guest", new UserPermissions(".*", ".*", ".*"));
    check("permissions", client.getPermissions("hop", "guest").getConfigure().equals(".*"));
  }

  private static void users(Client client) {
    client.createUser("hop", "secret".toCharArray(), List.of("monitoring", "management"));
    check("user", client.getUser("hop").getTags().equals(List.of("monitoring", "management")));
    client.createUserWithPasswordHash("hop", client.getUser("hop").getPasswordHash().toCharArray(), List.of("management"));
    client.updateUser("hop", "other".toCharArray(), List.of("management"));
    check("users", client.getUsers().size() >= 2);
    check("missing user", client.getUser("missing") == null);
    client.updatePermissions("hop", "hop", new UserPermissions("a", "b", "c"));
    check("permissions of a user", client.getPermissionsOf("hop").get(0).getWrite().equals("b"));
    check("permissions in a vhost", client.getPermissionsIn("hop").size() == 2);
    client.updateTopicPermissions("hop", "hop", new TopicPermissions("amq.topic", "^r", "^w"));
    check("topic permissions", client.getTopicPermissions("hop", "hop").get(0).getExchange().equals("amq.topic"));
    client.clearTopicPermissions("hop", "hop");
    client.clearPermissions("hop", "hop");
    check("no permissions", client.getPermissions("hop", "hop") == null);
    client.deleteUser("hop");
  }

  private static void objects(Client client) {
    client.declareQueue("hop", "q1", new QueueInfo(true, false, false, Map.of("x-max-length", 10)));
    QueueInfo queue = client.getQueue("hop", "q1");
    check("queue", queue.isDurable() && queue.getArguments().get("x-max-length").equals(10) && queue.getState().equals("running"));
    check("queues", client.getQueues("hop").size() == 1);
    check("details", client.getQueue("hop", "q1", new DetailsParameters().lengths(60, 5).messageRates(60, 5)) != null);
    Page<QueueInfo> page = client.getQueues("hop", new QueryParameters().name("^q", true).columns().add("name").query().pagination().pageSize(10).query());
    check("pages", page.getFilteredCount() == 1 && page.getItemsAsList().get(0).getName().equals("q1"));
    check("missing queue", client.getQueue("hop", "missing") == null);
    client.declareExchange("hop", "x1", new ExchangeInfo("topic", true, false));
    client.declareExchange("hop", "x2", new ExchangeInfo("fanout", true, false));
    check("exchange", client.getExchange("hop", "x1").getType().equals("topic"));
    check("missing exchange", client.getExchange("hop", "missing") == null);
    client.bindQueue("hop", "q1", "x1", "a.#", Map.of("n", 1));
    client.bindQueue("hop", "q1", "x1", "");
    client.bindExchange("hop", "x2", "x1", "b");
    check("bindings", client.getQueueBindingsBetween("hop", "x1", "q1").size() == 2);
    check("bindings of a queue", client.getQueueBindings("hop", "q1").size() == 3);
    check("bindings by source", client.getBindingsBySource("hop", "x1").size() == 3);
    check("bindings by destination", client.getExchangeBindingsByDestination("hop", "x2").size() == 1);
    client.unbindExchange("hop", "x2", "x1", "b");
    check("no bindings", client.getExchangeBindingsBetween("hop", "x1", "x2").isEmpty());
    try {
      client.declareQueue("hop", "q1", new QueueInfo(true, false, false, Map.of("x-max-length", 11)));
      check("inequivalent arguments are refused", false);
    } catch (HttpClientException error) {
      check("inequivalent arguments are refused", error.status() == 400);
    }
  }

  private static void messages(Client client) {
    OutboundMessage message = new OutboundMessage().payload("hello").utf8Encoded().properties(Map.of("delivery_mode", 2, "headers", Map.of("a", 1)));
    check("routed", client.publish("hop", "x1", "a.b", message));
    check("not routed", !client.publish("hop", "x1", "unknown", message));
    InboundMessage got = client.get("hop", "q1", 1, GetAckMode.NACK_REQUEUE_TRUE, GetEncoding.AUTO, -1).get(0);
    check("message", got.getPayload().equals("hello") && got.getRoutingKey().equals("a.b") && !got.isRedelivered());
    got = client.get("hop", "q1", 5, GetAckMode.ACK_REQUEUE_FALSE, GetEncoding.BASE64).get(0);
    check("redelivered", got.isRedelivered() && got.getPayload().equals("aGVsbG8=") && got.getMessageCount() == 0);
    client.publish("hop", "x1", "a.b", message);
    client.purgeQueue("hop", "q1");
    check("no message", client.get("hop", "q1") == null);
    client.deleteQueue("hop", "q1", new DeleteQueueParameters(true, true));
    client.deleteExchange("hop", "x2");
  }

  private static void policies(Client client) {
    client.declarePolicy("hop", "p", new PolicyInfo("^q", 1, "queues", Map.of("max-length", 5)));
    client.declareOperatorPolicy("hop", "p", new PolicyInfo("^q", 1, "queues", Map.of("max-length", 4)));
    check("policy", client.getPolicies("hop").get(0).getDefinition().get("max-length").equals(5));
    check("operator policy", client.getOperatorPolicies("hop").get(0).getPriority() == 1);
    client.deletePolicy("hop", "p");
    client.deleteOperatorPolicy("hop", "p");
    check("no policies", client.getPolicies().isEmpty() && client.getOperatorPolicies().isEmpty());
  }

  private static void limits(Client client) {
    client.limitMaxNumberOfConnections("hop", 10);
    client.limitMaxNumberOfQueues("hop", 20);
    VhostLimits limits = client.getVhostLimits("hop");
    check("limits", limits.getMaxConnections() == 10 && limits.getMaxQueues() == 20 && client.getVhostLimits().size() == 1);
    client.clearMaxConnectionsLimit("hop");
    client.clearMaxQueuesLimit("hop");
    check("no limits", client.getVhostLimits("hop").getMaxQueues() == -1);
  }

  private static void definitions(Client client) {
    Definitions definitions = client.getDefinitions();
    check("definitions", definitions.getServerVersion().startsWith("4.") && definitions.getExchanges().size() == 1);
    check("shovels", client.getShovels().isEmpty() && client.getShovelsStatus().isEmpty());
    check("upstreams", client.getUpstreams().isEmpty() && client.getUpstreamSets().isEmpty());
    client.deleteVhost("hop");
    check("deleted vhost", client.getVhost("hop") == null);
  }
}
