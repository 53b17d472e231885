package leveret.spark;

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.Serializable;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.concurrent.TimeoutException;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

/** Address of the broker and credentials. Tasks read a password file when they connect. The text shows no password. */
record Endpoint(String url, String vhost, String passwordFile, String caFile, boolean verify) implements Serializable {
    /** Milliseconds that the broker may be unreachable while a query runs. */
    static final long RECONNECT_TIMEOUT = 60_000;

    /** Milliseconds between attempts. */
    static final long RETRY_DELAY = 100;

    private static final String PASSWORD_VARIABLE = "LEVERET_PASSWORD";

    /**
     * Return an endpoint.
     *
     * @throws IllegalArgumentException the URL is invalid, or has options of its own
     */
    static Endpoint of(String url, String vhost, String passwordFile, String caFile, boolean verify) {
        Endpoint endpoint = new Endpoint(url, vhost, passwordFile, caFile, verify);
        URI uri = endpoint.uri();
        boolean tls = "amqps".equals(uri.getScheme());
        if (!tls && !"amqp".equals(uri.getScheme()) || uri.getHost() == null || uri.getQuery() != null) {
            throw invalidUrl();
        }
        if (!tls && (caFile != null || !verify)) {
            throw new IllegalArgumentException("options tls.caFile and tls.verify without TLS; expected amqps: in option url");
        }
        return endpoint;
    }

    /**
     * Open a connection.
     *
     * @param name its name
     * @throws IOException the broker refused it, or was not reachable in time
     */
    Connection connect(String name) throws IOException, InterruptedException {
        ConnectionFactory factory = factory();
        long deadline = System.nanoTime() + RECONNECT_TIMEOUT * 1_000_000;
        while (true) {
            try {
                return factory.newConnection(name);
            } catch (AuthenticationFailureException | SSLException error) {
                throw new IOException("no connection to " + this + ": " + error.getMessage(), error);
            } catch (IOException | TimeoutException error) {
                if (isRefused(error)) {
                    throw new IOException("no connection to " + this + ": " + error.getCause().getMessage(), error);
                }
                if (System.nanoTime() > deadline) {
                    throw new IOException(
                            String.format("no connection to %s within %d s: %s", this, RECONNECT_TIMEOUT / 1000, error), error);
                }
            }
            Thread.sleep(RETRY_DELAY);
        }
    }

    @Override
    public String toString() {
        URI uri = uri();
        return uri.getScheme() + "://" + uri.getHost() + (uri.getPort() < 0 ? "" : ":" + uri.getPort());
    }

    private URI uri() {
        try {
            return new URI(url);
        } catch (URISyntaxException error) {
            throw invalidUrl();
        }
    }

    /** Whether the broker refused the vhost. */
    private static boolean isRefused(Exception error) {
        return error.getCause() instanceof ShutdownSignalException signal
                && signal.getReason() instanceof AMQP.Connection.Close close
                && close.getReplyCode() == AMQP.NOT_ALLOWED;
    }

    private static IllegalArgumentException invalidUrl() {
        return new IllegalArgumentException(
                "option url: the value is invalid; expected amqp://user:password@host:port/vhost or amqps://, without a query");
    }

    private ConnectionFactory factory() throws IOException {
        ConnectionFactory factory = new ConnectionFactory();
        try {
            factory.setUri(url);
            if (uri().getScheme().equals("amqps")) {
                // The client verifies nothing on its own.
                factory.useSslProtocol(context());
                if (verify) {
                    factory.enableHostnameVerification();
                }
            }
        } catch (GeneralSecurityException | URISyntaxException error) {
            throw new IOException("TLS cannot be used: " + error.getMessage(), error);
        }
        if (vhost != null) {
            factory.setVirtualHost(vhost);
        } else if (uri().getRawPath().length() <= 1) {
            factory.setVirtualHost(ConnectionFactory.DEFAULT_VHOST);
        }
        String user = uri().getUserInfo();
        if (passwordFile != null) {
            factory.setPassword(new String(read("passwordFile", passwordFile), StandardCharsets.UTF_8).stripTrailing());
        } else if ((user == null || !user.contains(":")) && System.getenv(PASSWORD_VARIABLE) != null) {
            factory.setPassword(System.getenv(PASSWORD_VARIABLE));
        }
        factory.setAutomaticRecoveryEnabled(false);
        factory.setThreadFactory(task -> {
            Thread thread = new Thread(task, "leveret-spark");
            thread.setDaemon(true);
            return thread;
        });
        return factory;
    }

    private static byte[] read(String option, String path) throws IOException {
        try {
            return Files.readAllBytes(Path.of(path));
        } catch (IOException error) {
            throw new IOException(
                    String.format(
                            "option %s: '%s' cannot be read; expected a file that the driver and all workers can read", option,
                            path),
                    error);
        }
    }

    private SSLContext context() throws GeneralSecurityException, IOException {
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, verify ? trusted() : new TrustManager[] {new TrustAll()}, null);
        return context;
    }

    private TrustManager[] trusted() throws GeneralSecurityException, IOException {
        KeyStore store = null;
        if (caFile != null) {
            store = KeyStore.getInstance(KeyStore.getDefaultType());
            store.load(null, null);
            InputStream file = new ByteArrayInputStream(read("tls.caFile", caFile));
            for (Certificate found : CertificateFactory.getInstance("X.509").generateCertificates(file)) {
                store.setCertificateEntry("ca-" + store.size(), found);
            }
        }
        TrustManagerFactory factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        factory.init(store);
        return factory.getTrustManagers();
    }

    /** Verifies nothing, for {@code tls.verify} false. */
    private static final class TrustAll implements X509TrustManager {
        @Override
        public void checkClientTrusted(X509Certificate[] chain, String type) {}

        @Override
        public void checkServerTrusted(X509Certificate[] chain, String type) {}

        @Override
        public X509Certificate[] getAcceptedIssuers() {
            return new X509Certificate[0];
        }
    }
}
