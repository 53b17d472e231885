package leveret.spark;

/**
 * State of a stream at the broker.
 *
 * @param id unique to the stream, also among those declared with the same name
 * @param first offset of the oldest message
 * @param next offset that the next message will have
 */
record StreamState(String id, long first, long next) {
    /**
     * Check that a position is of this stream.
     *
     * @param stream its name
     * @param expected its id
     * @param reached offset before which all was read or planned
     * @throws IllegalStateException it is of another stream of this name, or beyond the end
     */
    void check(String stream, String expected, long reached) {
        if (!id.equals(expected)) {
            throw new IllegalStateException(String.format(
                    "the checkpoint is of another stream '%s': it was deleted and declared again (id %s, now %s); use a new "
                            + "checkpoint, or restore the stream",
                    stream, expected, id));
        }
        if (reached > next) {
            throw new IllegalStateException(String.format(
                    "stream '%s' lost messages at its end: the checkpoint has read up to offset %d, and the stream ends at %d; "
                            + "use a new checkpoint, or restore the broker's data",
                    stream, reached, next));
        }
    }
}
