package leveret.spark;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.PartitionOffset;
import org.apache.spark.sql.connector.read.streaming.SupportsRealTimeRead;

/** Reads a slice in a task. */
final class SliceReader implements SupportsRealTimeRead<InternalRow> {
    /** Creates readers at the executors. */
    record Factory(List<Column> columns) implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new SliceReader((Slice) partition, columns);
        }
    }

    /** How far a task in real-time mode has read the stream. */
    record Reached(String id, long next) implements PartitionOffset {}

    private record Lost(long value) implements CustomTaskMetric {
        @Override
        public String name() {
            return LostMessages.NAME;
        }
    }

    /** A wait for the next row. */
    private interface Wait {
        RecordBatch run() throws IOException, InterruptedException;
    }

    private final Slice slice;
    private final List<Column> columns;
    private final Feed feed;
    private RecordBatch row;
    private long lost;
    private boolean intact = true;

    private SliceReader(Slice slice, List<Column> columns) {
        this.slice = slice;
        this.columns = columns;
        feed = FeedCache.take(slice);
    }

    @Override
    public boolean next() throws IOException {
        row = wait(() -> feed.next(slice.stop()));
        return row != null;
    }

    @Override
    public RecordStatus nextWithTimeout(Long start, Long timeout) throws IOException {
        row = wait(() -> feed.nextWithin(timeout));
        return row == null
                ? RecordStatus.newStatusWithoutArrivalTime(false)
                : RecordStatus.newStatusWithArrivalTimeMs(row.appendTime());
    }

    @Override
    public InternalRow get() {
        Object[] values = new Object[columns.size()];
        for (int number = 0; number < values.length; number++) {
            values[number] = columns.get(number).value(row);
        }
        return new GenericInternalRow(values);
    }

    @Override
    public PartitionOffset getOffset() {
        return new Reached(slice.id(), feed.position());
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        lost += feed.takeLost();
        return new CustomTaskMetric[] {new Lost(lost)};
    }

    @Override
    public void close() {
        if (intact) {
            FeedCache.give(slice.query(), feed);
        } else {
            feed.close();
        }
    }

    private RecordBatch wait(Wait wait) throws IOException {
        boolean done = false;
        try {
            RecordBatch found = wait.run();
            done = true;
            return found;
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new InterruptedIOException("the task was interrupted");
        } finally {
            intact = done;
        }
    }
}
