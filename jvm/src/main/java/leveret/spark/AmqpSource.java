package leveret.spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** The format {@code amqp-jvm}: {@code readStream} of a Leveret stream, in micro-batches and in real-time mode. */
public final class AmqpSource implements TableProvider, DataSourceRegister {
    private static final String NAME = "amqp-jvm";

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return Column.SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        SourceOptions.parse(new CaseInsensitiveStringMap(properties)); // so that load() fails, not only the query
        return new StreamTable();
    }

    private static final class StreamTable implements Table, SupportsRead {
        @Override
        public String name() {
            return NAME;
        }

        @SuppressWarnings("deprecation") // Spark derives columns() from it
        @Override
        public StructType schema() {
            return Column.SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.MICRO_BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return new StreamScanBuilder(SourceOptions.parse(options));
        }
    }

    private static final class StreamScanBuilder implements ScanBuilder, SupportsPushDownRequiredColumns {
        private final SourceOptions options;
        private StructType schema = Column.SCHEMA;

        StreamScanBuilder(SourceOptions options) {
            this.options = options;
        }

        @Override
        public void pruneColumns(StructType required) {
            schema = required;
        }

        @Override
        public Scan build() {
            return new StreamScan(options, schema);
        }
    }

    private record StreamScan(SourceOptions options, StructType readSchema) implements Scan {
        @Override
        public String description() {
            return NAME + " " + options.stream();
        }

        @Override
        public MicroBatchStream toMicroBatchStream(String checkpointLocation) {
            return new TailStream(options, Column.of(readSchema));
        }

        @Override
        public CustomMetric[] supportedCustomMetrics() {
            return new CustomMetric[] {new LostMessages()};
        }
    }
}
