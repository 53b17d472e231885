package shop;

import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import org.springframework.amqp.core.Binding;
import org.springframework.amqp.core.BindingBuilder;
import org.springframework.amqp.core.Queue;
import org.springframework.amqp.core.QueueBuilder;
import org.springframework.amqp.core.TopicExchange;
import org.springframework.amqp.rabbit.annotation.RabbitListener;
import org.springframework.amqp.rabbit.connection.CorrelationData;
import org.springframework.amqp.rabbit.core.RabbitTemplate;
import org.springframework.amqp.support.converter.Jackson2JsonMessageConverter;
import org.springframework.boot.ApplicationArguments;
import org.springframework.boot.ApplicationRunner;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.annotation.Bean;
import org.springframework.stereotype.Component;

/** Processes orders until SIGTERM, and places those on the command line first: {@code --order=1,20}. */
@SpringBootApplication
public class Shop {
    static final String EXCHANGE = "spring-orders";
    static final String QUEUE = "spring-orders";
    static final String FAILED = "spring-orders-failed";

    public record Order(int id, int amount) {}

    public static void main(String[] arguments) {
        SpringApplication.run(Shop.class, arguments);
    }

    @Bean
    TopicExchange exchange() {
        return new TopicExchange(EXCHANGE);
    }

    @Bean
    Queue failed() {
        return QueueBuilder.durable(FAILED).build();
    }

    @Bean
    Queue orders() {
        return QueueBuilder.durable(QUEUE).quorum().deliveryLimit(5).deadLetterExchange("").deadLetterRoutingKey(FAILED)
                .build();
    }

    @Bean
    Binding binding(TopicExchange exchange, Queue orders) {
        return BindingBuilder.bind(orders).to(exchange).with("order.*");
    }

    @Bean
    Jackson2JsonMessageConverter converter() {
        return new Jackson2JsonMessageConverter();
    }

    @Component
    static class Listener {
        private static final Logger log = LoggerFactory.getLogger("shop");

        @RabbitListener(queues = QUEUE)
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
        private final RabbitTemplate template;

        Publisher(RabbitTemplate template) {
            this.template = template;
        }

        /** Publishes an order and returns when it is on disk. */
        void place(Order order) throws Exception {
            CorrelationData correlation = new CorrelationData();
            template.convertAndSend(EXCHANGE, "order.placed", order, correlation);
            CorrelationData.Confirm confirm = correlation.getFuture().get(30, TimeUnit.SECONDS);
            if (!confirm.isAck() || correlation.getReturned() != null) {
                throw new IllegalStateException("order " + order.id() + " was not stored: " + confirm.getReason());
            }
        }

        @Override
        public void run(ApplicationArguments arguments) throws Exception {
            if (arguments.containsOption("order")) {
                for (String text : arguments.getOptionValues("order")) {
                    String[] parts = text.split(",");
                    place(new Order(Integer.parseInt(parts[0]), Integer.parseInt(parts[1])));
                }
            }
        }
    }
}
