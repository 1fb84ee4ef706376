import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Submits a task to a Spillway service from Java: one message to its submit exchange.
 *
 * <pre>java -cp amqp-client.jar:slf4j-api.jar Submit.java mail.send welcome-anna '{"to": "anna@example.com"}'</pre>
 *
 * Needs com.rabbitmq:amqp-client 5, and SPILLWAY_AMQP_URL and SPILLWAY_SERVICE in the environment.
 */
public class Submit {
    /**
     * Returns the message's id once the broker has confirmed it: then the task is accepted. channel is in confirm mode.
     * Where it throws because the connection broke, nobody knows: submit it again with the same messageId.
     */
    static String submit(Channel channel, String service, String scene, String key, String json, String messageId) throws Exception {
        Map<String, Object> headers = new HashMap<>();
        headers.put("spillway-scene", scene);
        headers.put("spillway-key", key);
        headers.put("spillway-sent", System.currentTimeMillis());
        AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder()
            .messageId(messageId).contentType("application/json").deliveryMode(2).headers(headers).build();
        AtomicReference<String> returned = new AtomicReference<>(); // a return comes before its confirm
        channel.addReturnListener((code, text, exchange, routingKey, props, body) -> returned.set(text));
        try {
            channel.basicPublish("spillway.v1." + service + ".submit", "task", true, properties, json.getBytes(StandardCharsets.UTF_8));
            channel.waitForConfirmsOrDie(10_000);
        } finally {
            channel.clearReturnListeners();
        }
        if (returned.get() != null) {
            throw new IllegalStateException("not accepted: " + returned.get());
        }
        return messageId;
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv("SPILLWAY_AMQP_URL"));
        if (factory.getVirtualHost().isEmpty()) {
            factory.setVirtualHost("/"); // of amqp://host/, where other clients take the default
        }
        try (Connection connection = factory.newConnection("submit"); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            System.out.println(submit(channel, System.getenv("SPILLWAY_SERVICE"), args[0], args[1], args[2], UUID.randomUUID().toString()));
        }
    }
}
