package leveret.spark;

import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.IOException;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * A consumer of one stream that follows its end, for the tasks of one query: a batch finds it open. It resumes after a lost
 * connection.
 *
 * <p>The broker sends further record batches when this one acknowledges them, so a slow task gets fewer, larger ones.
 */
final class Feed {
    private static final Logger LOGGER = LoggerFactory.getLogger(Feed.class);

    /** Record batches in transit, at most 512 KiB each: those that arrive between two batches, or while a task is busy. */
    private static final int PREFETCH = 8;
    /** Milliseconds without a message that exists after which the connection is considered lost. */
    private static final long IDLE_TIMEOUT = 30_000;

    private final SourceOptions options;
    private final String id;
    private Connection connection;
    private Channel channel;
    private BlockingQueue<Delivery> deliveries;
    private RecordBatch batch;
    private long position;
    private long lost;
    /** Since when there was no record batch although there should be, in nanoseconds; 0 if all is well. */
    private long failing;

    /** A delivery; without a body if the consumer was cancelled or lost its connection. */
    private record Delivery(long tag, byte[] body) {}

    /**
     * Create a consumer, which connects when it is first read.
     *
     * @param options the broker and the stream
     * @param id the stream's id
     * @param position offset of its first row
     */
    Feed(SourceOptions options, String id, long position) {
        this.options = options;
        this.id = id;
        this.position = position;
    }

    /** The offset of the next row. */
    long position() {
        return position;
    }

    /** Continue at another offset, over the same connection. */
    void seek(long offset) {
        if (offset == position) {
            return;
        }
        position = offset;
        batch = null;
        if (channel != null) {
            try {
                channel.abort();
                channel = null;
            } catch (IOException error) {
                close();
            }
        }
    }

    /** Return the number of messages lost since the last call. */
    long takeLost() {
        long found = lost;
        lost = 0;
        return found;
    }

    /**
     * Go to the next row of a range that is complete at the broker.
     *
     * @param stop the offset before which it ends
     * @return the row, or null at the end
     * @throws IOException the range cannot be read
     */
    RecordBatch next(long stop) throws IOException, InterruptedException {
        while (position < stop) {
            if (take(stop)) {
                return batch;
            }
            if (position < stop && !receive(IDLE_TIMEOUT, stop)) {
                resume();
            }
        }
        return null;
    }

    /**
     * Go to the next row, and wait for it.
     *
     * @param timeout milliseconds
     * @return the row, or null if there was none in time
     * @throws IOException the stream cannot be read
     */
    RecordBatch nextWithin(long timeout) throws IOException, InterruptedException {
        long deadline = System.nanoTime() + timeout * 1_000_000;
        while (true) {
            if (take(Long.MAX_VALUE)) {
                return batch;
            }
            long left = (deadline - System.nanoTime()) / 1_000_000;
            if (left <= 0 || !receive(left, Long.MAX_VALUE)) {
                return null;
            }
        }
    }

    void close() {
        if (connection != null) {
            connection.abort(1000);
            connection = null;
        }
        channel = null;
        batch = null;
    }

    /** Go to the next row before {@code stop} of the current record batch, if there is one. */
    private boolean take(long stop) {
        if (batch == null) {
            return false;
        }
        skipLost(Math.min(batch.first, stop));
        if (batch.advance(stop)) {
            position = batch.offset() + 1;
            return true;
        }
        if (batch.isExhausted()) {
            position = batch.next;
            batch = null;
        } else {
            position = stop;
        }
        return false;
    }

    /** Wait for the next record batch. Returns false if there was none in time. */
    private boolean receive(long timeout, long stop) throws IOException, InterruptedException {
        connect(stop);
        Delivery delivery = deliveries.poll(timeout, TimeUnit.MILLISECONDS);
        if (delivery == null) {
            return false;
        }
        if (delivery.body == null) {
            resume();
            return true;
        }
        batch = new RecordBatch(delivery.body);
        failing = 0;
        if (batch.first < position) {
            throw new IOException(String.format(
                    "stream '%s': the broker sent offset %d again; expected %d", options.stream(), batch.first, position));
        }
        try {
            channel.basicAck(delivery.tag, false);
        } catch (IOException | ShutdownSignalException error) {
            // The last of the deliveries says so, too.
        }
        return true;
    }

    /** Close the connection, so that the next call opens another one, unless this has not helped for a while. */
    private void resume() throws IOException, InterruptedException {
        close();
        long now = System.nanoTime();
        if (failing == 0) {
            failing = now;
        } else if (now - failing > Endpoint.RECONNECT_TIMEOUT * 1_000_000) {
            throw new IOException(String.format(
                    "stream '%s', offset %d: the broker cannot read it; see the broker's log", options.stream(), position));
        }
        LOGGER.warn("stream '{}': resuming at offset {}", options.stream(), position);
        Thread.sleep(Endpoint.RETRY_DELAY);
    }

    private void connect(long stop) throws IOException, InterruptedException {
        if (connection == null) {
            StreamState state = describe();
            state.check(options.stream(), id, stop == Long.MAX_VALUE ? position : stop);
            skipLost(Math.min(state.first(), stop));
            connection = options.endpoint().connect("leveret-spark-read");
        }
        if (channel == null) {
            deliveries = new LinkedBlockingQueue<>();
            consume(deliveries);
        }
    }

    private void consume(BlockingQueue<Delivery> received) {
        Delivery closed = new Delivery(0, null);
        try {
            channel = connection.createChannel();
            channel.basicQos(PREFETCH);
            channel.basicConsume(
                    options.stream(), false, Map.of("x-stream-offset", position, "x-packed", true),
                    (tag, delivery) -> received.add(new Delivery(delivery.getEnvelope().getDeliveryTag(), delivery.getBody())),
                    tag -> received.add(closed), (tag, reason) -> received.add(closed));
        } catch (IOException | ShutdownSignalException error) {
            received.add(closed);
        }
    }

    private StreamState describe() {
        ControlClient control = new ControlClient(options.endpoint(), "leveret-spark-read");
        try {
            return control.describe(options.stream());
        } finally {
            control.close();
        }
    }

    /** Skip the messages before an offset, which retention has removed. */
    private void skipLost(long next) {
        if (next > position) {
            lost += DataLoss.skip(options, position, next);
            position = next;
        }
    }
}
