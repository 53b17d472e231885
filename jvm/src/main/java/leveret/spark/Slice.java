package leveret.spark;

import org.apache.spark.sql.connector.read.InputPartition;

/**
 * What a task reads: offsets from {@code first} to before {@code stop} of the stream. Tasks of one query share consumers.
 */
record Slice(SourceOptions options, String query, String id, long first, long stop) implements InputPartition {}
