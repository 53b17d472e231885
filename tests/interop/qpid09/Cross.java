import java.net.URI;
import javax.jms.BytesMessage;
import javax.jms.Connection;
import javax.jms.DeliveryMode;
import javax.jms.Message;
import javax.jms.MessageConsumer;
import javax.jms.MessageProducer;
import javax.jms.Queue;
import javax.jms.Session;
import javax.jms.TextMessage;
import org.apache.qpid.client.AMQConnectionFactory;

/** Sends two messages to a queue over AMQP 0-9 (`send QUEUE`), or receives and prints some (`receive QUEUE COUNT`). */
public class Cross {
  public static void main(String[] arguments) throws Exception {
    System.setProperty("qpid.amqp.version", "0-9");
    System.setProperty("qpid.dest_syntax", "BURL");
    URI url = URI.create(System.getenv("LEVERET_URL"));
    Connection connection = new AMQConnectionFactory("amqp://" + url.getUserInfo() + "@cross/?brokerlist='tcp://"
        + url.getHost() + ":" + url.getPort() + "'").createConnection();
    connection.start();
    Session session = connection.createSession(false, Session.AUTO_ACKNOWLEDGE);
    Queue queue = session.createQueue(arguments[1]);
    if (arguments[0].equals("send")) {
      session.createConsumer(queue).close();
      MessageProducer producer = session.createProducer(queue);
      TextMessage text = session.createTextMessage("grüße");
      text.setJMSCorrelationID("correlation");
      text.setStringProperty("colour", "red");
      text.setIntProperty("size", 3);
      producer.send(text, DeliveryMode.PERSISTENT, 7, 0);
      BytesMessage octets = session.createBytesMessage();
      octets.writeBytes(new byte[] {0, 1, (byte) 0xfe});
      producer.send(octets, DeliveryMode.NON_PERSISTENT, 4, 0);
    } else {
      MessageConsumer consumer = session.createConsumer(queue);
      for (int i = 0; i < Integer.parseInt(arguments[2]); i++) {
        Message message = consumer.receive(20_000);
        if (message == null) throw new AssertionError("no message came");
        String body = message.getClass().getSimpleName();
        if (message instanceof TextMessage) body += " " + ((TextMessage) message).getText();
        if (message instanceof BytesMessage) {
          BytesMessage octets = (BytesMessage) message;
          for (long n = 0; n < octets.getBodyLength(); n++) body += " " + octets.readUnsignedByte();
        }
        System.out.println(body + "; colour " + message.getStringProperty("colour") + "; correlation "
            + message.getJMSCorrelationID() + "; priority " + message.getJMSPriority() + "; mode "
            + message.getJMSDeliveryMode());
      }
    }
    connection.close();
    System.exit(0);
  }
}
