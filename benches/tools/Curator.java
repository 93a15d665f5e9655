// The client of Apache Curator for scripts/compare-tools: InterProcessMutex, with the ConnectionStateListener that its
// documentation recommends. The lines of text that the client reads and prints are described in compare.py.

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.state.ConnectionState;
import org.apache.curator.retry.ExponentialBackoffRetry;

public final class Curator {
    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    public static void main(String[] arguments) throws Exception {
        int ttl = Integer.parseInt(arguments[2]);
        CuratorFramework client =
            CuratorFrameworkFactory.newClient(arguments[0], ttl, ttl, new ExponentialBackoffRetry(100, 3));
        client.start();
        client.blockUntilConnected();
        client.getConnectionStateListenable().addListener((of, state) -> {
            if (state == ConnectionState.SUSPENDED) say("suspended");
            if (state == ConnectionState.RECONNECTED) say("reconnected");
            if (state == ConnectionState.LOST) say("lost session");
        });
        InterProcessMutex mutex = new InterProcessMutex(client, "/locks/" + arguments[1]);
        // The first acquire would otherwise also create the parent and load classes.
        InterProcessMutex warm = new InterProcessMutex(client, "/warm/" + System.nanoTime());
        warm.acquire();
        warm.release();
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            try {
                if (words[0].equals("acquire")) {
                    boolean acquired = mutex.acquire((long) Double.parseDouble(words[1]), TimeUnit.SECONDS);
                    say(acquired ? "acquired -" : "refused held");
                } else if (words[0].equals("held")) {
                    say(mutex.isAcquiredInThisProcess() ? "held yes" : "held no");
                } else if (words[0].equals("release")) {
                    mutex.release();
                    say("released");
                }
            } catch (Exception error) {
                say((words[0].equals("acquire") ? "refused " : "failed ") + error);
            }
        }
        Runtime.getRuntime().halt(0);
    }
}
