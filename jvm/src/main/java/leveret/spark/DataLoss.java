package leveret.spark;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Messages that retention removed before they were read. */
final class DataLoss {
    private static final Logger LOGGER = LoggerFactory.getLogger(DataLoss.class);

    private DataLoss() {}

    /**
     * Skip the offsets from {@code first} to before {@code stop}. Returns their number.
     *
     * @throws IllegalStateException {@code failOnDataLoss} is set
     */
    static long skip(SourceOptions options, long first, long stop) {
        long count = stop - first;
        String what = String.format(
                "stream '%s': %d messages, from offset %d to %d, were removed by retention before they were read",
                options.stream(), count, first, stop - 1);
        if (options.failOnDataLoss()) {
            throw new IllegalStateException(what + "; set failOnDataLoss to false to skip them");
        }
        LOGGER.warn("{}; skipped (failOnDataLoss=false)", what);
        return count;
    }
}
