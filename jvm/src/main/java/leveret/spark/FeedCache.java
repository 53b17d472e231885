package leveret.spark;

import java.util.HashMap;
import java.util.Iterator;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** The consumers of this process that no task uses, one for each query. They are closed after some idle minutes. */
final class FeedCache {
    private static final long IDLE_SECONDS = 300;
    private static final FeedCache INSTANCE = new FeedCache();

    private record Idle(Feed feed, long since) {}

    private final Map<String, Idle> idle = new HashMap<>();

    private FeedCache() {
        ScheduledExecutorService timer = Executors.newSingleThreadScheduledExecutor(task -> {
            Thread thread = new Thread(task, "leveret-spark-idle");
            thread.setDaemon(true);
            return thread;
        });
        timer.scheduleWithFixedDelay(this::closeIdle, IDLE_SECONDS, IDLE_SECONDS, TimeUnit.SECONDS);
    }

    /** Return the consumer of the slice's query, or a new one, at the start of the slice. */
    static Feed take(Slice slice) {
        Feed feed = INSTANCE.remove(slice.query());
        if (feed == null) {
            return new Feed(slice.options(), slice.id(), slice.first());
        }
        feed.seek(slice.first());
        return feed;
    }

    /** Keep a consumer for the next task of the query. */
    static void give(String query, Feed feed) {
        INSTANCE.add(query, feed);
    }

    /** Close the consumer of a query in this process. */
    static void close(String query) {
        Feed feed = INSTANCE.remove(query);
        if (feed != null) {
            feed.close();
        }
    }

    private synchronized Feed remove(String query) {
        Idle found = idle.remove(query);
        return found == null ? null : found.feed;
    }

    private synchronized void add(String query, Feed feed) {
        Idle other = idle.put(query, new Idle(feed, System.nanoTime()));
        if (other != null) {
            other.feed.close(); // that of a second attempt of the same task
        }
    }

    private synchronized void closeIdle() {
        long oldest = System.nanoTime() - TimeUnit.SECONDS.toNanos(IDLE_SECONDS);
        for (Iterator<Idle> feeds = idle.values().iterator(); feeds.hasNext(); ) {
            Idle found = feeds.next();
            if (found.since - oldest < 0) {
                found.feed.close();
                feeds.remove();
            }
        }
    }
}
