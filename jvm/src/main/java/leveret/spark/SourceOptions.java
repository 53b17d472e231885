package leveret.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.io.Serializable;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The options of the source, which have the names and the meaning of those of the format {@code amqp}.
 *
 * @param endpoint the broker
 * @param stream the stream
 * @param consumerName name under which the broker stores the start and the progress of a query, or null
 * @param startingOffset offset at which a query without a checkpoint begins, {@link #EARLIEST} or {@link #LATEST}
 * @param failOnDataLoss whether a query fails if retention removed messages before they were read
 * @param maxMessages maximum number of messages in a micro-batch, or null
 */
record SourceOptions(
        Endpoint endpoint,
        String stream,
        String consumerName,
        long startingOffset,
        boolean failOnDataLoss,
        Long maxMessages)
        implements Serializable {
    static final long EARLIEST = -2;
    static final long LATEST = -1;

    private static final Set<String> NAMES = Set.of(
            "url", "hosts", "vhost", "passwordFile", "tls.caFile", "tls.verify", "stream", "consumerName", "startingOffsets",
            "failOnDataLoss", "maxMessagesPerTrigger");
    private static final Map<String, String> BY_LOWER_CASE =
            NAMES.stream().collect(Collectors.toMap(name -> name.toLowerCase(Locale.ROOT), name -> name));

    /**
     * Parse the options.
     *
     * @throws IllegalArgumentException an option is unknown, missing or invalid
     */
    static SourceOptions parse(CaseInsensitiveStringMap options) {
        for (String name : options.asCaseSensitiveMap().keySet()) {
            if (!BY_LOWER_CASE.containsKey(name.toLowerCase(Locale.ROOT))) {
                throw new IllegalArgumentException(String.format(
                        "option '%s' is not valid in format amqp-jvm, which reads one stream; expected one of %s", name,
                        NAMES.stream().sorted().collect(Collectors.joining(", "))));
            }
        }
        String stream = options.get("stream");
        if (stream == null || stream.isEmpty()) {
            throw new IllegalArgumentException("option stream: required; format amqp reads super streams, patterns and queues");
        }
        SourceOptions found = new SourceOptions(
                Endpoint.of(
                        options.getOrDefault("url", "amqp://localhost"), hosts(options.get("hosts")), options.get("vhost"),
                        options.get("passwordFile"), options.get("tls.caFile"), bool(options, "tls.verify")),
                stream, options.get("consumerName"), startingOffset(options.getOrDefault("startingOffsets", "latest"), stream),
                bool(options, "failOnDataLoss"), positive(options.get("maxMessagesPerTrigger")));
        if (found.startingOffset == LATEST && found.consumerName == null) {
            throw new IllegalArgumentException(
                    "option consumerName: required if a query begins with the latest messages (option startingOffsets), so "
                            + "that a restart before its first checkpoint begins at the same offset");
        }
        return found;
    }

    private static List<String> hosts(String value) {
        return value == null ? List.of() : Stream.of(value.split(",", -1)).map(String::strip).toList();
    }

    private static boolean bool(CaseInsensitiveStringMap options, String name) {
        return switch (options.getOrDefault(name, "true").toLowerCase(Locale.ROOT)) {
            case "true" -> true;
            case "false" -> false;
            default -> throw invalid(name, options.get(name), "true or false");
        };
    }

    private static Long positive(String value) {
        if (value == null) {
            return null;
        }
        try {
            long number = Long.parseLong(value);
            if (number > 0) {
                return number;
            }
        } catch (NumberFormatException error) {
            // refused below
        }
        throw invalid("maxMessagesPerTrigger", value, "a whole number of at least 1");
    }

    private static long startingOffset(String value, String stream) {
        switch (value.toLowerCase(Locale.ROOT)) {
            case "earliest":
                return EARLIEST;
            case "latest":
                return LATEST;
            default:
        }
        try {
            JsonNode offset = StreamOffset.MAPPER.readTree(value).path(stream);
            if (offset.isIntegralNumber() && offset.canConvertToLong() && offset.asLong() >= EARLIEST) {
                return offset.asLong();
            }
        } catch (JsonProcessingException error) {
            // refused below
        }
        throw invalid("startingOffsets", value, "earliest, latest, or JSON such as {\"" + stream + "\": 17}");
    }

    private static IllegalArgumentException invalid(String name, String value, String expected) {
        return new IllegalArgumentException(String.format("option %s: '%s' is invalid; expected %s", name, value, expected));
    }
}
