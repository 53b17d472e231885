import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.io.aio.AIOSequentialFileFactory;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/** Artemis on a loopback port, until its input ends: `Embedded PORT DIRECTORY [keep]`. Prints "ready" once it listens.
 *
 * With `keep`, queues and their messages outlive their links.
 *
 * The settings are those of its own `create` command: the journal waits for the duration of a sync of this disk. */
public class Embedded {
    static final int BLOCKS = 250;

    public static void main(String[] arguments) throws Exception {
        Path directory = Files.createDirectories(Path.of(arguments[1]));
        boolean aio = AIOSequentialFileFactory.isSupported();
        int timeout = nanosOfSync(directory);
        ConfigurationImpl configuration = new ConfigurationImpl();
        configuration.setBrokerInstance(directory.toFile());
        configuration.setPersistenceEnabled(true).setSecurityEnabled(false);
        configuration.setJournalType(aio ? JournalType.ASYNCIO : JournalType.NIO);
        configuration.setJournalBufferTimeout_NIO(timeout);
        configuration.setJournalBufferTimeout_AIO(timeout);
        configuration.setMaxDiskUsage(99);
        configuration.addAcceptorConfiguration("amqp", "tcp://127.0.0.1:" + arguments[0]
            + "?protocols=AMQP;tcpSendBufferSize=1048576;tcpReceiveBufferSize=1048576;useEpoll=true"
            + ";amqpCredits=1000;amqpLowCredits=300;amqpMinLargeMessageSize=102400");
        boolean keep = arguments.length > 2 && arguments[2].equals("keep");
        // Queues are created and, unless they are kept, deleted with their links, with the messages that a load leaves behind.
        configuration.addAddressSetting("#", new AddressSettings()
            .setDefaultAddressRoutingType(RoutingType.ANYCAST).setDefaultQueueRoutingType(RoutingType.ANYCAST)
            .setAutoCreateAddresses(true).setAutoCreateQueues(true).setDefaultPurgeOnNoConsumers(!keep)
            .setAutoDeleteQueues(!keep).setAutoDeleteAddresses(!keep));
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ().setConfiguration(configuration);
        broker.start();
        System.out.println("ready, " + (aio ? "AIO" : "NIO") + ", " + timeout + " ns");
        while (System.in.read() >= 0) {
        }
        broker.stop();
        System.exit(0);
    }

    /** The duration of a synced write of a block: the best of five attempts. */
    static int nanosOfSync(Path directory) throws Exception {
        long best = Long.MAX_VALUE;
        Path path = directory.resolve("probe");
        for (int round = 0; round < 5; round++) {
            try (FileChannel file = FileChannel.open(path, StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                ByteBuffer block = ByteBuffer.allocateDirect(4096);
                long begin = System.nanoTime();
                for (int i = 0; i < BLOCKS; i++) {
                    block.clear();
                    file.write(block);
                    file.force(false);
                }
                best = Math.min(best, System.nanoTime() - begin);
            }
        }
        Files.delete(path);
        return (int) (best / BLOCKS);
    }
}
