import java.util.HashMap;
import java.util.Map;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.RESTCatalogAdapter;
import org.apache.iceberg.rest.RESTCatalogServlet;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Serves Iceberg's own REST catalog on loopback, as Iceberg's image for tests does. Its tables are in a SQLite file,
 * and their files in an object store. Arguments: port, then properties of the catalog, KEY=VALUE.
 */
public final class RestCatalog {
    public static void main(String[] arguments) throws Exception {
        Map<String, String> properties = new HashMap<>();
        for (int place = 1; place < arguments.length; place++) {
            String[] pair = arguments[place].split("=", 2);
            properties.put(pair[0], pair[1]);
        }
        JdbcCatalog catalog = new JdbcCatalog();
        catalog.initialize("catalog", properties);
        ServletContextHandler context = new ServletContextHandler(ServletContextHandler.NO_SESSIONS);
        context.addServlet(new ServletHolder(new RESTCatalogServlet(new RESTCatalogAdapter(catalog))), "/*");
        Server server = new Server(new java.net.InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0])));
        server.setHandler(context);
        server.start();
        System.out.println("ready");
        server.join();
    }
}
