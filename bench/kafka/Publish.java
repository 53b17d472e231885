import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Publishes bodies of a file to Kafka with the producer's default settings (acks=all, idempotent).
 *
 * <p>Arguments: bootstrap server, topic, file, size of a body, number of messages, messages a second (0: as fast as
 * possible), seconds before them in which it publishes to another topic, so that the JVM compiles its code. At a rate, each
 * body begins with the time at which it is sent, in nanoseconds. Prints the seconds from the first send to the last
 * acknowledgement, and the number of messages to both topics.
 */
public final class Publish {
    private static final int BATCH = 50_000;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        byte[] pool = Files.readAllBytes(Path.of(arguments[2]));
        int size = Integer.parseInt(arguments[3]);
        int count = Integer.parseInt(arguments[4]);
        int rate = Integer.parseInt(arguments[5]);
        int warmup = Integer.parseInt(arguments[6]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            int published = count;
            for (long end = System.nanoTime() + warmup * 1_000_000_000L; System.nanoTime() < end; published += BATCH) {
                send(producer, topic + "-warmup", pool, size, BATCH, 0);
            }
            producer.partitionsFor(topic);
            System.out.println(send(producer, topic, pool, size, count, rate) + " " + published);
        }
    }

    private static double send(
            KafkaProducer<byte[], byte[]> producer, String topic, byte[] pool, int size, int count, int rate)
            throws Exception {
        AtomicReference<Exception> failed = new AtomicReference<>();
        long began = System.nanoTime();
        int bodies = pool.length / size;
        for (int number = 0; number < count; number++) {
            int start = number % bodies * size;
            byte[] body = Arrays.copyOfRange(pool, start, start + size);
            if (rate > 0) {
                long due = began + number * 1_000_000_000L / rate;
                while (System.nanoTime() < due) {
                    Thread.sleep(1);
                }
                byte[] text = String.valueOf(System.currentTimeMillis() * 1_000_000L).getBytes(StandardCharsets.US_ASCII);
                System.arraycopy(text, 0, body, 0, text.length);
                body[text.length] = ' ';
            }
            producer.send(new ProducerRecord<>(topic, body), (metadata, error) -> {
                if (error != null) {
                    failed.compareAndSet(null, error);
                }
            });
        }
        producer.flush();
        if (failed.get() != null) {
            throw failed.get();
        }
        return (System.nanoTime() - began) / 1e9;
    }
}
