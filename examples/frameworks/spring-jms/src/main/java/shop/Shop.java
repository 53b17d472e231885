package shop;

import jakarta.jms.ConnectionFactory;
import org.apache.qpid.jms.JmsConnectionFactory;
import org.messaginghub.pooled.jms.JmsPoolConnectionFactory;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.beans.factory.annotation.Value;
import org.springframework.boot.ApplicationArguments;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.jms.annotation.JmsListener;
import org.springframework.jms.core.JmsTemplate;
import org.springframework.jms.support.converter.MappingJackson2MessageConverter;
import org.springframework.jms.support.converter.MessageType;
import org.springframework.stereotype.Component;

/** Processes orders until SIGTERM, and places those on the command line first: {@code --order=1,20}. */
@SpringBootApplication
public class Shop {
    static final String QUEUE = "jms-orders";

    public record Order(int id, int amount) {}

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    /** A pool, because JmsTemplate opens a connection, session and producer for each message. */
    @Bean(destroyMethod = "stop")
    ConnectionFactory connectionFactory(
            @Value("${shop.url}") String url,
            @Value("${shop.user}") String user,
            @Value("${shop.password}") String password) {
        JmsPoolConnectionFactory pool = new JmsPoolConnectionFactory();
        pool.setConnectionFactory(new JmsConnectionFactory(user, password, url));
        return pool;
    }

    @Bean
    MappingJackson2MessageConverter converter() {
        MappingJackson2MessageConverter converter = new MappingJackson2MessageConverter();
        converter.setTargetType(MessageType.TEXT);
        converter.setTypeIdPropertyName("type");
        return converter;
    }

    @Component
    static class Listener {
        private static final Logger log = LoggerFactory.getLogger("shop");

        @JmsListener(destination = QUEUE)
        void onOrder(Order order) {
            if (order.amount() <= 0) {
                log.info("order {} failed", order.id());
                throw new IllegalArgumentException("amount " + order.amount());
            }
            log.info("order {} done", order.id());
        }
    }

    @Component
    static class Publisher implements ApplicationRunner {
        private final JmsTemplate template;

        Publisher(JmsTemplate template) {
            this.template = template;
        }

        /** Sends orders; each call returns when the message is on disk. */
        @Override
        public void run(ApplicationArguments arguments) {
            if (arguments.containsOption("order")) {
                for (String text : arguments.getOptionValues("order")) {
                    String[] parts = text.split(",");
                    template.convertAndSend(QUEUE, new Order(Integer.parseInt(parts[0]), Integer.parseInt(parts[1])));
                }
            }
        }
    }
}
