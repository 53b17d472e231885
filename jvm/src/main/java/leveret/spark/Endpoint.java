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
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeoutException;
import java.util.stream.Collectors;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLException;
import javax.net.ssl.TrustManager;
import javax.net.ssl.TrustManagerFactory;
import javax.net.ssl.X509TrustManager;

/**
 * Address of the broker and credentials. Tasks read a password file when they connect. The text shows no password.
 *
 * @param hosts other nodes, as {@code host} or {@code host:port}, which are tried in turn if the host of the URL does not answer
 */
record Endpoint(String url, List<String> hosts, String vhost, String passwordFile, String caFile, boolean verify)
        implements Serializable {
    /** Milliseconds that the broker may be unreachable while a query runs. */
    static final long RECONNECT_TIMEOUT = 60_000;

    /** Milliseconds between attempts. */
    static final long RETRY_DELAY = 100;

    /** Milliseconds for a node to accept a connection. */
    private static final int CONNECT_TIMEOUT = 5_000;

    private static final String PASSWORD_VARIABLE = "LEVERET_PASSWORD";

    /**
     * Return an endpoint.
     *
     * @throws IllegalArgumentException the URL is invalid, or has options of its own, or a host is invalid
     */
    static Endpoint of(
            String url, List<String> hosts, String vhost, String passwordFile, String caFile, boolean verify) {
        Endpoint endpoint = new Endpoint(url, hosts, vhost, passwordFile, caFile, verify);
        URI uri = endpoint.uri();
        boolean tls = "amqps".equals(uri.getScheme());
        if (!tls && !"amqp".equals(uri.getScheme()) || uri.getHost() == null || uri.getQuery() != null) {
            throw invalidUrl();
        }
        if (!tls && (caFile != null || !verify)) {
            throw new IllegalArgumentException("options tls.caFile and tls.verify without TLS; expected amqps: in option url");
        }
        endpoint.nodes();
        return endpoint;
    }

    /**
     * Open a connection to the first node that accepts it.
     *
     * @param name its name
     * @throws IOException a node refused it, or none was reachable in time
     */
    Connection connect(String name) throws IOException, InterruptedException {
        ConnectionFactory factory = factory();
        List<URI> nodes = nodes();
        long deadline = System.nanoTime() + RECONNECT_TIMEOUT * 1_000_000;
        while (true) {
            Exception last = null;
            for (URI node : nodes) {
                factory.setHost(node.getHost());
                factory.setPort(node.getPort() < 0 ? ConnectionFactory.USE_DEFAULT_PORT : node.getPort());
                try {
                    return factory.newConnection(name);
                } catch (AuthenticationFailureException | SSLException error) {
                    throw new IOException("no connection to " + this + ": " + error.getMessage(), error);
                } catch (IOException | TimeoutException error) {
                    if (isRefused(error)) {
                        throw new IOException("no connection to " + this + ": " + error.getCause().getMessage(), error);
                    }
                    last = error;
                }
            }
            if (System.nanoTime() > deadline) {
                throw new IOException(
                        String.format("no connection to %s within %d s: %s", this, RECONNECT_TIMEOUT / 1000, last), last);
            }
            Thread.sleep(RETRY_DELAY);
        }
    }

    @Override
    public String toString() {
        return uri().getScheme() + "://"
                + nodes().stream()
                        .map(node -> node.getHost() + (node.getPort() < 0 ? "" : ":" + node.getPort()))
                        .collect(Collectors.joining(","));
    }

    /** The address of each node, that of the URL first. */
    private List<URI> nodes() {
        List<URI> found = new ArrayList<>();
        found.add(uri());
        for (String host : hosts) {
            URI node;
            try {
                node = new URI(uri().getScheme() + "://" + host);
            } catch (URISyntaxException error) {
                throw invalidHost(found.size());
            }
            if (node.getHost() == null || !node.getRawPath().isEmpty() || node.getRawUserInfo() != null
                    || node.getRawQuery() != null || node.getRawFragment() != null) {
                throw invalidHost(found.size());
            }
            found.add(node);
        }
        return found;
    }

    /** The value may contain a password. */
    private static IllegalArgumentException invalidHost(int number) {
        return new IllegalArgumentException(String.format(
                "option hosts: address %d is invalid; expected host or host:port, separated by commas", number));
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
        factory.setConnectionTimeout(CONNECT_TIMEOUT);
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
