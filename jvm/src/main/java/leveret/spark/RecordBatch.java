package leveret.spark;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * Rows of a record batch, one after another. {@code leveret/broker/queues/record_batches.py} documents the layout.
 *
 * <p>It covers the offsets from {@code first} to before {@code next}. Offsets without a row were erased.
 */
final class RecordBatch {
    private static final int MAGIC = 0x3150564c; // LVP1
    private static final int HEAD = 24;
    /** The beginning of an overlay, in MessagePack: a map whose first key is {@code address}. */
    private static final byte[] OVERLAY_ADDRESS = {(byte) 0x83, (byte) 0xa7, 'a', 'd', 'd', 'r', 'e', 's', 's'};
    /** MessagePack: bytes with a size of 8 or 16 bits. */
    private static final int BYTES_8 = 0xc4;
    private static final int BYTES_16 = 0xc5;

    final long first;
    final long next;

    private final byte[] data;
    private final ByteBuffer buffer;
    private final int count;
    private final int times;
    private final int addressSizes;
    private final int overlaySizes;
    private final int bodySizes;
    private int row = -1;
    private int address;
    private int addressSize;
    private int overlay;
    private int overlaySize;
    private int body;
    private int bodySize;

    /**
     * Parse a delivery.
     *
     * @throws IllegalStateException it is no record batch
     */
    RecordBatch(byte[] data) {
        this.data = data;
        buffer = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        if (data.length < HEAD || buffer.getInt(0) != MAGIC) {
            throw new IllegalStateException("a delivery of " + data.length + " bytes is not a record batch");
        }
        count = buffer.getInt(4);
        first = buffer.getLong(8);
        next = buffer.getLong(16);
        times = HEAD + 8 * count;
        addressSizes = times + 13 * count;
        overlaySizes = addressSizes + 8 * count;
        bodySizes = overlaySizes + 4 * count;
        address = bodySizes + 4 * count;
        overlay = address + sum(addressSizes, 2 * count);
        body = overlay + sum(overlaySizes, count);
        if (body + sum(bodySizes, count) != data.length) {
            throw new IllegalStateException(
                    "a record batch of " + count + " messages has " + data.length + " bytes, which its sizes contradict");
        }
    }

    /** Go to the next row, unless there is none or its offset is not below {@code stop}. */
    boolean advance(long stop) {
        if (isExhausted() || offsetOf(row + 1) >= stop) {
            return false;
        }
        row++;
        address += addressSize;
        overlay += overlaySize;
        body += bodySize;
        addressSize = buffer.getInt(addressSizes + 4 * row);
        overlaySize = buffer.getInt(overlaySizes + 4 * row);
        bodySize = buffer.getInt(bodySizes + 4 * row);
        return true;
    }

    boolean isExhausted() {
        return row + 1 == count;
    }

    // The current row

    long offset() {
        return offsetOf(row);
    }

    /** Milliseconds since 1970. */
    long appendTime() {
        return buffer.getLong(times + 8 * row);
    }

    byte[] body() {
        return Arrays.copyOfRange(data, body, body + bodySize);
    }

    /** UTF-8; for a dead letter, the key with which it reached the stream. */
    byte[] routingKey() {
        int found = currentAddress();
        int size = found + 1 + (data[found] & 0xff);
        return Arrays.copyOfRange(data, size + 1, size + 1 + (data[size] & 0xff));
    }

    private int currentAddress() {
        int end = overlay + OVERLAY_ADDRESS.length;
        if (overlaySize <= OVERLAY_ADDRESS.length
                || !Arrays.equals(data, overlay, end, OVERLAY_ADDRESS, 0, OVERLAY_ADDRESS.length)) {
            return address;
        }
        return switch (data[end] & 0xff) {
            case BYTES_8 -> end + 2;
            case BYTES_16 -> end + 3;
            default -> address; // null: not replaced
        };
    }

    private long offsetOf(int number) {
        return buffer.getLong(HEAD + 8 * number);
    }

    private int sum(int at, int sizes) {
        int total = 0;
        for (int number = 0; number < sizes; number++) {
            total += buffer.getInt(at + 4 * number);
        }
        return total;
    }
}
