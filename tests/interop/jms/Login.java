import jakarta.jms.Connection;
import jakarta.jms.InvalidClientIDException;
import jakarta.jms.JMSException;
import jakarta.jms.JMSSecurityException;
import jakarta.jms.Message;
import jakarta.jms.Session;
import java.net.URI;
import org.apache.qpid.jms.JmsConnectionFactory;

/** Qpid JMS logs in: by SCRAM and PLAIN, over TLS on the plain port, as the only connection of its client id. */
public class Login {
    private static int passed = 0;
    private static String address;
    private static String trust;

    public static void main(String[] arguments) throws Exception {
        URI url = new URI(System.getenv("LEVERET_URL"));
        address = url.getHost() + ":" + url.getPort();
        trust = System.getenv("LEVERET_TRUST_STORE");
        for (String mechanism : new String[] {"SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"}) {
            String query = "?amqp.saslMechanisms=" + mechanism;
            try (Connection connection = open("amqp", query, "guest", null)) {
                sendAndReceive(connection);
            }
            ok(mechanism);
            try (Connection connection = open("amqp", query, "wrong", null)) {
                throw new IllegalStateException("in by a wrong password");
            } catch (JMSSecurityException refused) {
                ok(mechanism + " with a wrong password");
            }
        }
        // Its own choice.
        try (Connection connection = open("amqp", "", "guest", null)) {
            sendAndReceive(connection);
        }
        ok("its own choice");
        try (Connection connection = open("amqps", "?transport.trustStoreLocation=" + trust
                + "&transport.trustStorePassword=secret&transport.verifyHost=false", "guest", null)) {
            sendAndReceive(connection);
        }
        ok("tls on the plain port");
        soleConnection();
        System.out.println(passed + " passed");
    }

    private static void soleConnection() throws JMSException {
        Connection first = open("amqp", "", "guest", "client");
        try (Connection second = open("amqp", "", "guest", "client")) {
            throw new IllegalStateException("two connections of one client id");
        } catch (InvalidClientIDException refused) {
            ok("the second connection of a client id");
        }
        try (Connection other = open("amqp", "", "guest", "other")) {
            ok("another client id");
        }
        sendAndReceive(first);
        first.close();
        try (Connection again = open("amqp", "", "guest", "client")) {
            sendAndReceive(again);
        }
        ok("the client id is free again");
    }

    private static Connection open(String scheme, String query, String password, String id) throws JMSException {
        JmsConnectionFactory factory = new JmsConnectionFactory("guest", password, scheme + "://" + address + query);
        Connection connection = factory.createConnection();
        try {
            if (id != null) {
                connection.setClientID(id);
            }
            connection.start();
        } catch (JMSException error) {
            connection.close();
            throw error;
        }
        return connection;
    }

    private static void sendAndReceive(Connection connection) throws JMSException {
        Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
        jakarta.jms.Queue queue = session.createTemporaryQueue();
        session.createProducer(queue).send(session.createTextMessage("hello"));
        Message message = session.createConsumer(queue).receive(20000);
        if (message == null || !"hello".equals(message.getBody(String.class))) {
            throw new IllegalStateException("the message did not come back");
        }
        session.close();
    }

    private static void ok(String what) {
        System.out.println("ok " + what);
        passed++;
    }
}
