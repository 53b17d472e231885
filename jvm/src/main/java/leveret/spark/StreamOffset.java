package leveret.spark;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * Checkpoint offset, with the JSON of the format {@code amqp}: see {@code leveret/spark/source/offsets.py}.
 *
 * <p>{@code next} is the offset of the next message to read in the stream with this id, and {@code began} the offset at which
 * the query began, so that the first batch can be planned again identically: Spark asks for the initial offset at each start
 * and does not store it. Only the initial offset is marked as {@code initial}.
 */
final class StreamOffset extends Offset {
    static final ObjectMapper MAPPER = new ObjectMapper();

    private static final int VERSION = 1;

    final String stream;
    final String id;
    final long next;
    final long began;
    final boolean initial;

    StreamOffset(String stream, String id, long next, long began, boolean initial) {
        this.stream = stream;
        this.id = id;
        this.next = next;
        this.began = began;
        this.initial = initial;
    }

    /**
     * Parse a checkpoint offset.
     *
     * @throws IllegalStateException it is of another source, stream or version
     */
    static StreamOffset parse(String json, String stream) {
        try {
            JsonNode value = MAPPER.readTree(json);
            JsonNode position = value.path("streams").path(stream);
            if (value.path("version").asInt() == VERSION && value.path("streams").size() == 1 && position.has("next")) {
                return new StreamOffset(
                        stream, position.get("id").asText(), position.get("next").asLong(),
                        value.path("began").path(stream).asLong(), value.path("initial").asBoolean());
            }
        } catch (JsonProcessingException error) {
            // refused below
        }
        throw new IllegalStateException(String.format(
                "the checkpoint's offsets are not those of stream '%s': %.200s; expected the checkpoint of the same query",
                stream, json));
    }

    @Override
    public String json() {
        ObjectNode value = MAPPER.createObjectNode();
        value.put("version", VERSION);
        value.putObject("streams").putObject(stream).put("id", id).put("next", next);
        value.putObject("began").put(stream, began);
        if (initial) {
            value.put("initial", true);
        }
        return value.toString();
    }
}
