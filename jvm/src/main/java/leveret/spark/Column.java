package leveret.spark;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns of the source, in order. */
enum Column {
    BODY("body", DataTypes.BinaryType) {
        @Override
        Object value(RecordBatch row) {
            return row.body();
        }
    },
    ROUTING_KEY("routing_key", DataTypes.StringType) {
        @Override
        Object value(RecordBatch row) {
            return UTF8String.fromBytes(row.routingKey());
        }
    },
    OFFSET("offset", DataTypes.LongType) {
        @Override
        Object value(RecordBatch row) {
            return row.offset();
        }
    },
    TIMESTAMP("timestamp", DataTypes.TimestampType) {
        @Override
        Object value(RecordBatch row) {
            return row.appendTime() * 1000;
        }
    };

    static final StructType SCHEMA = schema();

    private final String title;
    private final DataType type;

    Column(String title, DataType type) {
        this.title = title;
        this.type = type;
    }

    /** Return the value of the current row, as Spark represents it internally. */
    abstract Object value(RecordBatch row);

    /** Return the columns of a schema. */
    static List<Column> of(StructType schema) {
        List<Column> all = List.of(values());
        List<String> titles = all.stream().map(column -> column.title).toList();
        return Arrays.stream(schema.fieldNames()).map(name -> all.get(titles.indexOf(name))).toList();
    }

    private static StructType schema() {
        StructType schema = new StructType();
        for (Column column : values()) {
            schema = schema.add(column.title, column.type, false);
        }
        return schema;
    }
}
