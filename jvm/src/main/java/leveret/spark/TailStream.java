package leveret.spark;

import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.UUID;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeMode;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * {@code readStream} of a stream, exactly once by the offsets of the checkpoint.
 *
 * <p>Spark keeps one instance per query in the driver. A batch is one task, because planning further ones takes more time
 * than they save while a query keeps up.
 */
final class TailStream implements MicroBatchStream, SupportsTriggerAvailableNow, SupportsRealTimeMode, ReportsSourceMetrics {
    private final SourceOptions options;
    private final String stream;
    private final List<Column> columns;
    private final ControlClient control;
    /** Distinguishes this run of the query, whose tasks share consumers. */
    private final String query = UUID.randomUUID().toString();
    /** Where a query with the trigger {@code availableNow} ends, or null. */
    private StreamState available;
    private StreamOffset latest;
    private StreamOffset realTimeStart;

    TailStream(SourceOptions options, List<Column> columns) {
        this.options = options;
        this.columns = columns;
        stream = options.stream();
        control = new ControlClient(options.endpoint(), "leveret-spark");
    }

    // Offsets

    @Override
    public Offset initialOffset() {
        StreamState state = control.describe(stream);
        long begin = startingOffset(state);
        if (options.consumerName() != null) {
            begin = control.start(stream, options.consumerName(), begin);
        }
        return new StreamOffset(stream, state.id(), begin, begin, true);
    }

    private long startingOffset(StreamState state) {
        long chosen = options.startingOffset();
        if (chosen == SourceOptions.EARLIEST) {
            return state.first();
        }
        if (chosen == SourceOptions.LATEST) {
            return state.next();
        }
        if (chosen > state.next() || options.failOnDataLoss() && chosen < state.first()) {
            throw new IllegalArgumentException(String.format(
                    "option startingOffsets: offset %d is out of range: stream '%s' has offsets from %d to %d, and the next one "
                            + "is %d",
                    chosen, stream, state.first(), state.next() - 1, state.next()));
        }
        return chosen;
    }

    @Override
    public Offset deserializeOffset(String json) {
        return StreamOffset.parse(json, stream);
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        available = control.describe(stream);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        return options.maxMessages() == null ? ReadLimit.allAvailable() : ReadLimit.maxRows(options.maxMessages());
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark calls latestOffset with a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        StreamOffset begin = (StreamOffset) start;
        StreamState state = control.describe(stream);
        state.check(stream, begin.id, begin.next);
        latest = new StreamOffset(stream, state.id(), state.next(), begin.began, false);
        long stop = Math.max(available == null ? state.next() : Math.min(available.next(), state.next()), begin.next);
        if (limit instanceof ReadMaxRows rows) {
            // Messages that retention has removed do not count.
            stop = Math.min(stop, Math.max(begin.next, state.first()) + rows.maxRows());
        }
        return new StreamOffset(stream, state.id(), stop, begin.began, begin.initial && stop == begin.next);
    }

    @Override
    public Offset reportLatestOffset() {
        return latest;
    }

    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        if (latest == null || consumed.isEmpty()) {
            return Map.of();
        }
        // After a restart it is the text of the checkpoint.
        StreamOffset reached = StreamOffset.parse(consumed.get().json(), stream);
        return Map.of("lag", String.valueOf(latest.next - reached.next));
    }

    // Batches

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        StreamOffset begin = (StreamOffset) start;
        StreamOffset stop = (StreamOffset) end;
        long first = begin.initial ? stop.began : begin.next;
        return first < stop.next
                ? new InputPartition[] {new Slice(options, query, stop.id, first, stop.next)}
                : new InputPartition[0];
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new SliceReader.Factory(columns);
    }

    @Override
    public void commit(Offset end) {
        if (options.consumerName() != null) {
            control.commit(stream, options.consumerName(), ((StreamOffset) end).next);
        }
    }

    @Override
    public void stop() {
        control.close();
        FeedCache.close(query);
    }

    // Real-time mode

    @Override
    public InputPartition[] planInputPartitions(Offset start) {
        realTimeStart = (StreamOffset) start;
        return new InputPartition[] {new Slice(options, query, realTimeStart.id, realTimeStart.next, Long.MAX_VALUE)};
    }

    @Override
    public Offset mergeOffsets(PartitionOffset[] offsets) {
        SliceReader.Reached reached = (SliceReader.Reached) offsets[0];
        return new StreamOffset(stream, reached.id(), reached.next(), realTimeStart.began, false);
    }
}
