package leveret.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

/**
 * Sends requests to the exchange {@code leveret.control}, over a connection that is opened on first use and again after a
 * failure. Requests are repeated after a lost connection, so they must be idempotent.
 */
final class ControlClient {
    private static final String EXCHANGE = "leveret.control";
    private static final String REPLY_TO = "amq.rabbitmq.reply-to";
    private static final int REQUEST_TIMEOUT = 30;
    /** Instead of a reply: the channel is closed. */
    private static final byte[] CLOSED = {};

    private final Endpoint endpoint;
    private final String name;
    private Connection connection;
    private Channel channel;
    private BlockingQueue<byte[]> replies;

    ControlClient(Endpoint endpoint, String name) {
        this.endpoint = endpoint;
        this.name = name;
    }

    /** The current state of a stream. */
    StreamState describe(String stream) {
        JsonNode reply = request("stream.describe", arguments(stream));
        return new StreamState(
                reply.get("id").asText(), reply.get("first_offset").asLong(), reply.get("next_offset").asLong());
    }

    /** Register the start of a consumer. Returns its offset, which a previous start may have registered. */
    long start(String stream, String consumer, long offset) {
        return request("stream.start", arguments(stream).put("consumer", consumer).put("offset", offset))
                .get("offset")
                .asLong();
    }

    /** Store the progress of a consumer. */
    void commit(String stream, String consumer, long offset) {
        request("stream.commit", arguments(stream).put("consumer", consumer).put("offset", offset));
    }

    synchronized void close() {
        if (connection != null) {
            connection.abort(1000);
            connection = null;
        }
    }

    private static ObjectNode arguments(String stream) {
        return StreamOffset.MAPPER.createObjectNode().put("version", 1).put("stream", stream);
    }

    private synchronized JsonNode request(String operation, ObjectNode arguments) {
        try {
            byte[] body = StreamOffset.MAPPER.writeValueAsBytes(arguments);
            long deadline = System.nanoTime() + Endpoint.RECONNECT_TIMEOUT * 1_000_000;
            while (true) {
                byte[] reply = exchange(operation, body);
                if (reply != null && reply != CLOSED) {
                    return result(operation, arguments, StreamOffset.MAPPER.readTree(reply));
                }
                close();
                if (System.nanoTime() > deadline) {
                    throw new IOException(operation + ": no reply from " + endpoint);
                }
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        } catch (InterruptedException error) {
            close();
            Thread.currentThread().interrupt();
            // Spark stops queries with interrupts, and recognizes this cause.
            throw new UncheckedIOException(new java.io.InterruptedIOException(operation + ": interrupted"));
        }
    }

    private static JsonNode result(String operation, ObjectNode arguments, JsonNode reply) {
        if (reply.path("ok").asBoolean()) {
            return reply;
        }
        throw new IllegalArgumentException(String.format(
                "stream '%s': %s: %s", arguments.path("stream").asText(), operation,
                reply.path("error").path("message").asText()));
    }

    /** Send a request. Returns the reply, null if there was none in time, or CLOSED. */
    private byte[] exchange(String operation, byte[] body) throws IOException, InterruptedException {
        if (connection == null || !connection.isOpen() || !channel.isOpen()) {
            close();
            connection = endpoint.connect(name);
            BlockingQueue<byte[]> received = new LinkedBlockingQueue<>();
            replies = received;
            try {
                channel = connection.createChannel();
                channel.basicConsume(
                        REPLY_TO, true, (tag, delivery) -> received.add(delivery.getBody()), tag -> received.add(CLOSED),
                        (tag, reason) -> received.add(CLOSED));
            } catch (IOException | ShutdownSignalException error) {
                return CLOSED;
            }
        }
        AMQP.BasicProperties properties =
                new AMQP.BasicProperties.Builder().replyTo(REPLY_TO).contentType("application/json").build();
        try {
            channel.basicPublish(EXCHANGE, operation, properties, body);
        } catch (IOException | ShutdownSignalException error) {
            return CLOSED;
        }
        return replies.poll(REQUEST_TIMEOUT, TimeUnit.SECONDS);
    }
}
