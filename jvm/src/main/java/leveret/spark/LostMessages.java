package leveret.spark;

import org.apache.spark.sql.connector.metric.CustomSumMetric;

/** Number of messages that a batch skipped because retention had removed them, with {@code failOnDataLoss} false. */
public final class LostMessages extends CustomSumMetric {
    static final String NAME = "lostMessages";

    @Override
    public String name() {
        return NAME;
    }

    @Override
    public String description() {
        return "messages that retention removed before they were read";
    }
}
